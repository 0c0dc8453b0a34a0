"""GPU packages that cannot work on a virtual GPU say so by name when they are imported (design §8)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from looseleaf.devices.hook import LastingFinder
from looseleaf.errors import Unsupported

REAL_GPU_PACKAGES: frozenset[str] = frozenset(
    {
        "cucim", "cudf", "cugraph", "cuml", "cupy", "cuspatial", "flash_attn", "pycuda", "rmm", "tensorrt", "triton",
    }
)


class VirtualGpuImportError(Unsupported, ImportError):
    """Both: a refusal of LooseLeaf, and what `except ImportError` around an optional import catches."""


class RefusingFinder(LastingFinder):
    """Refuses `REAL_GPU_PACKAGES` that are installed while it is started; one that is not fails as anywhere."""

    def __init__(self) -> None:
        self._refuses = False

    def start(self) -> None:
        """Look at imports from now on."""
        self._refuses = True
        self.enter()

    def stop(self) -> None:
        """Look no longer."""
        self._refuses = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not self._refuses or fullname not in REAL_GPU_PACKAGES:
            return None
        if self.spec_of_those_behind(fullname, path, target) is None:
            return None
        raise VirtualGpuImportError(
            "VIRTUAL_GPU_UNSUPPORTED",
            f"{fullname} needs a real GPU; a LooseLeaf virtual GPU runs torch only. Nothing was changed; "
            "use the CPU counterpart (numpy, pandas, scikit-learn), or run where LooseLeaf has GPUs.",
            feature=fullname,
        )


# One for the whole process: it stays in `sys.meta_path`.
REFUSALS: Final = RefusingFinder()
