"""The store without its server: commits, retention, fallback, collection, and a model that it must agree with."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from looseleaf.clock import ManualClock
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import CapacityExceeded, Conflict, InvalidArgument, NotFound, PreconditionFailed
from looseleaf.services.checkpoint_store.core.references import VersionRefs
from looseleaf.services.checkpoint_store.regions import Region
from looseleaf.services.checkpoint_store.store import Store, StoreLimits, open_store
from looseleaf.services.checkpoint_store.verifier import verify_index

from .conftest import Saver, State, make_state  # noqa: TID252


def upload(store: Store, state: State) -> int:
    transfer = store.regions.begin_upload()
    transfer.add([(Region(*key), data) for key, data in state.region_chunks()])
    return transfer.finish()
