"""Recipes of texts that do not parse yet: two thirds of what a person has typed half-way (design §4).

Token scan of live names beats parsing the prefix; together they beat both.
"""

from __future__ import annotations

import re
from dataclasses import replace

from looseleaf.recipe.analyze import analyze_cell
from looseleaf.recipe.facts import SOURCE_CHARS_MAX, CellFacts, Read
from looseleaf.recipe.tokens import token_names
from looseleaf.recipe.tree import UNPARSEABLE, parse

# Prefixes that are tried, last line first; a mistake further up is left to the token scan.
PREFIX_TRIES_MAX = 24

# A line magic or shell line at a statement's place, near enough to look for mistakes elsewhere.
_MAGIC_LINE = re.compile(r"(%%?|!)[A-Za-z_!]")
_MODULE = r"[\w.]+(?:\s+as\s+\w+)?"
_IMPORT = re.compile(rf"^\s*(?:from\s+([\w.]+)\s+import\b|import\s+({_MODULE}(?:\s*,\s*{_MODULE})*))", re.MULTILINE)


def imported_in(source: str) -> frozenset[str]:
    """Modules of the import lines of `source`, finished or not."""
    found: set[str] = set()
    for origin, names in _IMPORT.findall(source[:SOURCE_CHARS_MAX]):
        if origin:
            found.add(origin)
        found.update(name.split()[0] for name in names.split(",") if name.split())
    return frozenset(name for name in found if not name.startswith(".") and not name.endswith("."))


def longest_prefix(source: str, *, future_annotations: bool = False) -> CellFacts | None:
    """Facts of the longest prefix of whole lines that parses, None if no tried one does."""
    lines = source[:SOURCE_CHARS_MAX].splitlines(keepends=True)
    probe = ["pass\n" if _MAGIC_LINE.match(line) else line for line in lines]
    end = len(lines) - 1
    for _ in range(PREFIX_TRIES_MAX):
        if end <= 0:
            return None
        wrong = _wrong_line("".join(probe[:end]))
        if wrong is None:
            facts = analyze_cell("".join(lines[:end]), future_annotations=future_annotations)
            if facts.parsed:
                return facts
        # No longer prefix than up to the mistake can parse.
        end = min(end, wrong or end) - 1
    return None


def _wrong_line(python: str) -> int | None:
    """The line of the first mistake, from 1; 0 if Python names none, None if there is no mistake."""
    try:
        parse(python)
    except SyntaxError as error:
        return error.lineno or 0
    except UNPARSEABLE:
        return 0
    return None


def partial_facts(source: str, unparsed: CellFacts, *, future_annotations: bool = False) -> CellFacts:
    """Facts of a text that does not parse: the prefix's, with every identifier of the text as one that may be read."""
    prefix = longest_prefix(source, future_annotations=future_annotations)
    names = token_names(source)
    scanned = tuple(Read(name, frozenset()) for name in sorted(names))
    modules = imported_in(source)
    if prefix is None:
        return replace(unparsed, reads=scanned, loads=names, modules=modules)
    known = {read.name for read in prefix.reads}
    bound = prefix.defines | prefix.imports
    # What the prefix surely binds first is not looked up in the session because the rest of the text names it again.
    reads = (*prefix.reads, *(read for read in scanned if read.name not in known and read.name not in bound))
    return replace(
        prefix, source_hash=unparsed.source_hash, parsed=False, reads=reads, loads=prefix.loads | names,
        modules=prefix.modules | modules, override=unparsed.override or prefix.override,
    )  # fmt: skip
