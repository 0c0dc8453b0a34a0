"""One small seam over an ordered key-value store (design §7); the store and the scheduler sit on it.

Reading order: `backend.py` (the promises), `guarded.py` (locking, errors, reopening), `counted.py` (loss is told), then
the engines.
"""

from looseleaf.kv.backend import Batch, KvBackend, scan_all
from looseleaf.kv.opening import KV_KINDS, open_kv

__all__ = ["KV_KINDS", "Batch", "KvBackend", "open_kv", "scan_all"]
