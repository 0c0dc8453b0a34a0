"""The command line: `main.py` is the program, each other module registers its commands."""
