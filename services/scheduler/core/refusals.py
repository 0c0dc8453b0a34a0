"""The errors that callers get, with texts for people: what happened to their state and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from looseleaf.errors import CapacityExceeded, InvalidArgument, LooseLeafError, PreconditionFailed, Unavailable
from looseleaf.ids import Epoch
from looseleaf.services.scheduler.core.facts import ExecutionRecord, ExecutionState
from looseleaf.units import format_bytes

_UNSTARTED = "The cell did not run and nothing changed."
_FAILURES = {
    "CANCELLED": "The request was cancelled before a GPU was granted. " + _UNSTARTED,
    "START_TIMEOUT": "The GPU was granted but the cell was not started in time, so the GPU was taken back. "
    + _UNSTARTED + " Run the cell again.",
    "LEASE_EXPIRED": "The GPU lease ran out before the cell was started. " + _UNSTARTED + " Run the cell again.",
    "STALE_EPOCH": "A newer owner of this notebook's session took over. " + _UNSTARTED,
    "SCHEDULER_RESTARTED": "The scheduler was restarted and nobody asked for this run again. " + _UNSTARTED,
    "SAVE_LOST": "The cell ran, but contact with its host was lost before its changes were saved: the session is at the"
    " version before the cell unless the newest version says otherwise. Look at the newest version, then run the cell"
    " again.",
}


def stale_epoch(asked: Epoch, current: Epoch) -> LooseLeafError:
    """An old owner asks."""
    return PreconditionFailed(
        "STALE_EPOCH", f"This kernel owned the session at epoch {asked}; epoch {current} has taken over. {_UNSTARTED}"
        " Restart the kernel to work on the newest version.", epoch=int(asked), current_epoch=int(current),
    )


def queue_full(limit: int) -> LooseLeafError:
    """The Run queue is at its bound."""
    return CapacityExceeded(
        "RUN_QUEUE_FULL", f"{limit} cells wait for a GPU already. {_UNSTARTED} Run the cell again later.", limit=limit,
    )


def session_queue_full(limit: int) -> LooseLeafError:
    """One session's share of the Run queue is at its bound."""
    return CapacityExceeded(
        "SESSION_QUEUE_FULL", f"{limit} cells of this notebook wait for a GPU already. {_UNSTARTED}", limit=limit,
    )


def too_many_waiters(limit: int) -> LooseLeafError:
    """One execution is asked for by too many callers at once."""
    return CapacityExceeded(
        "RUN_WAITERS_FULL", f"{limit} callers wait for this run already; they will get its lease.", limit=limit,
    )


def never_fits_count(asked: int, largest: int) -> LooseLeafError:
    """No host has that many GPUs."""
    return CapacityExceeded(
        "NEVER_FITS", f"The cell asks for {asked} GPUs on one host; the largest host has {largest}. {_UNSTARTED}"
        f" Ask for at most {largest}.", asked_gpus=asked, largest_host_gpus=largest,
    )


def over_tenant_quota(asked: int, limit: int) -> LooseLeafError:
    """More GPUs than a tenant may hold at a time."""
    return CapacityExceeded(
        "NEVER_FITS", f"The cell asks for {_gpus(asked)}, and your team may hold {_gpus(limit)} at a time.",
        asked_gpus=asked, tenant_gpus_max=limit,
    )


def never_fits_bytes(asked: int, largest: int) -> LooseLeafError:
    """No GPUs hold the cell's closure."""
    return CapacityExceeded(
        "NEVER_FITS", f"The cell needs {format_bytes(asked)} on its GPU for the variables it uses; the most there is"
        f" here is {format_bytes(largest)}. {_UNSTARTED} Move variables to the CPU or delete what it does not need.",
        asked_bytes=asked, largest_bytes=largest,
    )


def holder_gone(names: Sequence[str], why: str, ended_s_ago: float) -> LooseLeafError:
    """The worker with variables that no version has is gone."""
    listed, them, were = _listed(names)
    told = f"That process {why}, {ended_s_ago:.0f} s ago." if why else "That process is gone."
    return PreconditionFailed(
        "UNSAVED_GONE", f"This cell needs {listed}, which cannot be saved and {were} kept in a GPU process. {told}"
        f" {_UNSTARTED} Make {them} again, best in the cell that uses {them}.", names=", ".join(names), why=why,
    )


def holder_has_other_gpus(names: Sequence[str], has: int, asked: int) -> LooseLeafError:
    """The worker with variables that no version has cannot change its number of GPUs."""
    listed, them, were = _listed(names)
    return PreconditionFailed(
        "UNSAVED_VARIABLE", f"This cell asks for {_gpus(asked)} and needs {listed}, which cannot be saved and {were}"
        f" kept in a process with {_gpus(has)}. {_UNSTARTED} Ask for {has}, or make {them} in the cell that uses"
        f" {them}.", names=", ".join(names),
    )


def holder_too_small(names: Sequence[str], asked: int, has: int) -> LooseLeafError:
    """The host of the worker with variables that no version has cannot take the cell."""
    listed, them, were = _listed(names)
    return PreconditionFailed(
        "UNSAVED_VARIABLE", f"This cell needs {listed}, which cannot be saved and {were} kept in a process on a GPU of"
        f" {format_bytes(has)}, too small for the {format_bytes(asked)} of its other variables. {_UNSTARTED}"
        f" Make {them} in the cell that uses {them}.", names=", ".join(names),
    )


def _listed(names: Sequence[str]) -> tuple[str, str, str]:
    """The names as a sentence has them, the word for them, and "was" or "were"."""
    quoted = [repr(name) for name in names]
    if len(quoted) < 2:
        return "".join(quoted), "it", "was"
    return f"{', '.join(quoted[:-1])} and {quoted[-1]}", "them", "were"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def id_reused(execution_id: str) -> LooseLeafError:
    """One execution id, two sessions."""
    return InvalidArgument("EXECUTION_ID_REUSED", f"Execution {execution_id} belongs to another session. {_UNSTARTED}")


def priority_unknown(priority: str) -> LooseLeafError:
    """Neither interactive nor batch."""
    text = f"Priority {priority!r} is neither 'interactive' nor 'batch'. {_UNSTARTED}"
    return InvalidArgument("PRIORITY_UNKNOWN", text)


def grants_refused(count: int, message: str) -> LooseLeafError:
    """Daemons keep refusing the lease."""
    return Unavailable(
        "GRANTS_REFUSED", f"GPU hosts refused this run {count} times, at last with: {message or 'no reason given'}."
        f" {_UNSTARTED} Run the cell again; if it goes on, look at the worker daemons' logs.", refusals=count,
    )


def lease_withdrawn(record: ExecutionRecord) -> LooseLeafError:
    """The execution is out, but under a lease that is not handed out any more."""
    return PreconditionFailed(
        "EXECUTION_FAILED", "The GPU of this run is being taken back, or an earlier owner of the notebook still runs"
        " it: it does not start a second time. Run the cell again.", state=record.state.name, why="LEASE_WITHDRAWN",
    )


def ended_error(record: ExecutionRecord) -> LooseLeafError:
    """What somebody is told who asks for a lease of an execution that has ended."""
    fields = {"state": record.state.name, "why": record.reason}
    if record.state is ExecutionState.SAVED:
        return PreconditionFailed(
            "EXECUTION_ENDED", "This run has ended and its changes are saved; it does not run a second time.", **fields,
        )
    if record.state is ExecutionState.INDETERMINATE:
        return PreconditionFailed(
            "EXECUTION_INDETERMINATE", "Contact with this run was lost: nobody can tell whether the cell ran. The"
            " session is at its last saved version. Choose: run the cell again, or go on from there.", **fields,
        )
    text = _FAILURES.get(record.reason, f"This run failed ({record.reason or 'no reason given'}). Run the cell again.")
    return PreconditionFailed("EXECUTION_FAILED", text, **fields)
