"""`python -m looseleaf.services.frontend`."""

from __future__ import annotations

import sys

from looseleaf.services.frontend.server import main

if __name__ == "__main__":
    sys.exit(main())
