"""The last whole recipe of each session, for preparations that the policy thinks of itself."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from looseleaf.ids import SessionId
from looseleaf.services.scheduler.core.facts import RecipeFacts
from looseleaf.v1 import recipe_pb2

# Sessions whose recipe is kept; of the one that asked longest ago it is forgotten first.
SESSIONS_MAX: Final = 4096


class KnownRecipes:
    """By session; a recipe of another text or of an older state is no use and not given."""

    def __init__(self) -> None:
        self._recipes: OrderedDict[SessionId, recipe_pb2.ExecutionRecipe] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recipes)

    def put(self, session_id: SessionId, recipe: recipe_pb2.ExecutionRecipe) -> None:
        """The session asked for a worker with this recipe."""
        self._recipes[session_id] = recipe
        self._recipes.move_to_end(session_id)
        if len(self._recipes) > SESSIONS_MAX:
            self._recipes.popitem(last=False)

    def get(self, session_id: SessionId, facts: RecipeFacts) -> recipe_pb2.ExecutionRecipe | None:
        """The whole recipe of which the policy knows `facts`, or None."""
        recipe = self._recipes.get(session_id)
        if recipe is None or (recipe.source_hash, recipe.version) != (facts.source_hash, facts.version):
            return None
        return recipe
