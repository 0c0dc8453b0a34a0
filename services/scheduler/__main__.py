"""`python -m looseleaf.services.scheduler`."""

import sys

from looseleaf.services.scheduler.server import main

sys.exit(main())
