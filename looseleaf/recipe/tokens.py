"""Identifiers of texts that are no Python, or not yet: what they may read, by a scan for tokens."""

from __future__ import annotations

import re

from looseleaf.recipe.facts import SOURCE_CHARS_MAX

# Strings and comments are dropped; an f-string's braces stay, as names in them are read.
_TOKEN = re.compile(
    r"""
    (?P<comment>\#[^\n]*)
  | (?P<fstring>(?i:rf|fr|f)(?:"{3}.*?(?:"{3}|\Z)|'{3}.*?(?:'{3}|\Z)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?))
  | (?P<string>(?i:[rbu]|br|rb)?(?:"{3}.*?(?:"{3}|\Z)|'{3}.*?(?:'{3}|\Z)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?))
  | (?P<attribute>\.\s*[^\W\d]\w*)
  | (?:\b(?:def|class|as)\s+[^\W\d]\w*)
  | (?P<name>[^\W\d]\w*)
    """,
    re.VERBOSE | re.DOTALL,
)
# What follows a name that is bound, or is a parameter's, and not read.
_BINDS = re.compile(r"\s*=(?!=)")
_BRACES = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(r"(?<![.\w])[^\W\d]\w*")


def token_names(source: str) -> frozenset[str]:
    """Identifiers in `source` that may be read: outside comments and plain strings, no attributes, not only bound."""
    found: set[str] = set()
    for match in _TOKEN.finditer(source[:SOURCE_CHARS_MAX]):
        if match["name"]:
            if not _BINDS.match(source, match.end()):
                found.add(match["name"])
        elif match["fstring"]:
            for inside in _BRACES.findall(match["fstring"]):
                found.update(_NAME.findall(inside))
    return frozenset(found)
