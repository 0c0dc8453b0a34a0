"""Where an error is explained: the page of errors has an anchor for each reason."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

# Where the pages that `make docs` builds are served, such as https://docs.example.org/looseleaf; empty: nowhere.
DOCS_URL_VARIABLE: Final = "LOOSELEAF_DOCS_URL"
# Without such a place: the page in a checkout.
PAGE: Final = "docs/errors.md"
_REASON: Final = re.compile(r"[A-Z][A-Z0-9_]+")


def page_of(reason: str, environ: Mapping[str, str] | None = None) -> str:
    """The address of the reason's entry; empty for what is no reason of ours, such as "ValueError"."""
    if not _REASON.fullmatch(reason):
        return ""
    docs_url = (os.environ if environ is None else environ).get(DOCS_URL_VARIABLE, "").rstrip("/")
    return f"{docs_url}/errors.html#{reason}" if docs_url else f"{PAGE}#{reason}"
