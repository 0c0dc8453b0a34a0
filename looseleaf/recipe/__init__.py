"""From a cell's text to its execution recipe, without running it: text → facts → graph → recipe (§3.1, design §4).

Start at `recipe.py`. Imports neither torch nor numpy.
"""

from __future__ import annotations

from looseleaf.recipe.analyze import analyze_cell
from looseleaf.recipe.facts import CellFacts, CodeFacts, source_hash
from looseleaf.recipe.label import SMALL_READ_BYTES_MAX, DeviceLabel
from looseleaf.recipe.lessons import Observation
from looseleaf.recipe.log import CellRun, ExecutionLog
from looseleaf.recipe.name_facts import NameFacts, Payload, facts_from_manifest
from looseleaf.recipe.origins import CellPackages, cell_packages
from looseleaf.recipe.packages import modules_in
from looseleaf.recipe.recipe import Analysis, Recipe, analyze, derive_recipe, with_logged_names

__all__ = [
    "SMALL_READ_BYTES_MAX",
    "Analysis",
    "CellFacts",
    "CellPackages",
    "CellRun",
    "CodeFacts",
    "DeviceLabel",
    "ExecutionLog",
    "NameFacts",
    "Observation",
    "Payload",
    "Recipe",
    "analyze",
    "analyze_cell",
    "cell_packages",
    "derive_recipe",
    "facts_from_manifest",
    "modules_in",
    "source_hash",
    "with_logged_names",
]
