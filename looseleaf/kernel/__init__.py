"""The Jupyter kernel: an IPython kernel whose GPU cells run on a leased worker (design §9).

Start with `kernel.py`; `session.py` holds the session's state, `gpu_cell.py` the way of one GPU cell.
"""
