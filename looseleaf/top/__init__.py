"""`looseleaf top`: `snapshot.py` asks the services, `model.py` makes rows of it, `app.py` shows them."""
