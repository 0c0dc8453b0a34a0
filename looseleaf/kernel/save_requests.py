"""Requests of a batch run to its kernel, on the control channel; `save_points` answers them."""

from __future__ import annotations

from typing import Final

SAVE_REQUEST: Final = "looseleaf_save_point_request"
RESUME_REQUEST: Final = "looseleaf_resume_request"
