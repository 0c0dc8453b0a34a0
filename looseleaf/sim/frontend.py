"""The recipe frontend of the simulator: what edits and guesses tell the scheduler before Run (design §4)."""

from __future__ import annotations

from typing import Protocol

from looseleaf.ids import Version
from looseleaf.services.scheduler.core.facts import RecipeFacts
from looseleaf.sim.world import Session, World


class AskForWorker(Protocol):
    """Wants a worker made ready for a recipe."""

    def __call__(self, session: Session, recipe: RecipeFacts, *, predicted: bool) -> None:
        """Called at the time of the edit or of the guess."""
        ...


class SimFrontend:
    """One for all sessions. A cell is shown `debounce_s` after its edit began, and again while the person types.

    Before that the next cell is guessed, right in `prediction_right` of all gaps: else another GPU cell is prepared
    than will run, or one where none will. An abandoned GPU cell is edited once, in the window of the cell that is run.
    """

    def __init__(self, world: World, ask: AskForWorker) -> None:
        self._engine = world.engine
        self._mechanism = world.model.mechanism
        self._ask = ask

    def gap_began(self, session: Session) -> None:
        """A cell has ended, and `session.cell` comes next."""
        without = self._mechanism.without
        if "speculation" in without:
            return
        cell, now_s = session.cell, self._engine.now_s
        right = cell.guess < self._mechanism.prediction_right
        predict_after_s = self._mechanism.predict_after_s
        # Once somebody edits there is nothing to guess.
        if "prediction" not in without and (cell.gpu or not right) and predict_after_s < cell.gap_s - cell.edit_s:
            guessed = recipe_hash(session) if right else f"{recipe_hash(session)}-wrong"
            self._engine.after(predict_after_s, self._predict, session, session.number, guessed)
        if cell.gpu or cell.abandoned:
            edited = recipe_of(
                session, recipe_hash(session) if cell.gpu else f"{recipe_hash(session)}-abandoned")
            shown_s = now_s + cell.gap_s - cell.edit_s + min(self._mechanism.debounce_s, cell.edit_s)
            self._engine.at(shown_s, self._edit, session, session.number, edited)

    def _predict(self, session: Session, number: int, source_hash: str) -> None:
        if _in_gap(session, number):
            self._ask(session, recipe_of(session, source_hash), predicted=True)

    def _edit(self, session: Session, number: int, recipe: RecipeFacts) -> None:
        if not _in_gap(session, number):
            return
        self._ask(session, recipe, predicted=False)
        if session.cell.gpu:
            self._engine.after(self._mechanism.edit_again_s, self._edit, session, number, recipe)


def _in_gap(session: Session, number: int) -> bool:
    return session.number == number and not session.pressed


def recipe_hash(session: Session) -> str:
    """Of the cell that the session will run next."""
    return f"{session.index}.{session.number}"


def recipe_of(session: Session, source_hash: str) -> RecipeFacts:
    """A recipe of the session as its state is now; one of another cell needs other names."""
    cell = session.cell
    return RecipeFacts(
        source_hash, Version(session.number), names=frozenset((source_hash,)), gpu_count=cell.gpu_count,
        device_bytes=cell.closure_bytes)
