"""`python -m looseleaf.services.checkpoint_store`."""

from __future__ import annotations

import sys

from looseleaf.services.checkpoint_store.server import main

if __name__ == "__main__":
    sys.exit(main())
