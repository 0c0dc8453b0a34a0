"""Makes this folder's modules importable: models of the Docker files, and the rig that runs them without an engine."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
