"""The import rules as a running process sees them: import-linter cannot see what a dependency pulls in."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORT_ALL = """
import importlib, pkgutil, sys
for root in {roots!r}:
    package = importlib.import_module(root)
    for module in pkgutil.walk_packages(package.__path__, root + "."):
        if not module.name.endswith((".__main__", "._cuda")):
            importlib.import_module(module.name)
print(sorted({unwanted!r} & set(sys.modules)))
"""


def loaded_of(unwanted: set[str], roots: list[str]) -> str:
    """Which of `unwanted` are loaded in a fresh process after every module of `roots` was imported."""
    code = IMPORT_ALL.format(roots=roots, unwanted=unwanted)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.mark.parametrize("service", ["frontend", "scheduler", "checkpoint_store", "worker_daemon"])
def test_service_imported_whole_loads_neither_torch_nor_numpy(service: str) -> None:
    assert loaded_of({"torch", "numpy", "cloudpickle"}, [f"looseleaf.services.{service}"]) == "[]"


def test_package_beside_user_code_imported_whole_loads_neither_grpc_nor_protobuf() -> None:
    packages = ["checkpoint", "devices", "dirty_tracker", "kernel", "protocol", "recipe", "worker"]
    unwanted = {"grpc", "google.protobuf", "looseleaf.rpc", "looseleaf.v1", "structlog", "pydantic"}
    assert loaded_of(unwanted, [f"looseleaf.{name}" for name in packages]) == "[]"
