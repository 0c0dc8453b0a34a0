"""`python -m looseleaf.services.worker_daemon`."""

from __future__ import annotations

import sys

from looseleaf.services.worker_daemon.server import main

if __name__ == "__main__":
    sys.exit(main())
