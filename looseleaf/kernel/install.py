"""The kernelspec "Python 3 (LooseLeaf)"."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

KERNEL_NAME: Final = "looseleaf"
DISPLAY_NAME: Final = "Python 3 (LooseLeaf)"
KERNEL_MODULE: Final = "looseleaf.kernel"


def kernel_spec(python: str = "", endpoint: str = "", env: dict[str, str] | None = None) -> dict[str, Any]:
    """The content of kernel.json.

    `python`: the interpreter, this one if empty. `endpoint`: the daemon's kernel socket, empty to find it at start. The
    kernel never sees a GPU of its own, and shares its hash seed with the pool, so that sets and dicts of strings keep
    their order between processes.
    """
    variables = {"CUDA_VISIBLE_DEVICES": "", "PYTHONHASHSEED": "0", **(env or {})}
    if endpoint:
        variables["LOOSELEAF_ENDPOINT"] = endpoint
    return {
        "argv": [python or sys.executable, "-m", KERNEL_MODULE, "-f", "{connection_file}"],
        "display_name": DISPLAY_NAME,
        "language": "python",
        "interrupt_mode": "message",
        "env": variables,
        "metadata": {"debugger": True},
    }


def install(*, user: bool = False, prefix: str | None = None, name: str = KERNEL_NAME, endpoint: str = "") -> Path:
    """Writes the kernelspec where Jupyter looks for it; returns its folder.

    Raises OSError if that is not allowed, ValueError for a name that Jupyter refuses.
    """
    from jupyter_client.kernelspec import KernelSpecManager

    with tempfile.TemporaryDirectory() as folder:
        # Jupyter runs as other users too.
        Path(folder).chmod(0o755)
        Path(folder, "kernel.json").write_text(json.dumps(kernel_spec(endpoint=endpoint), indent=1), encoding="utf-8")
        manager = KernelSpecManager()
        return Path(manager.install_kernel_spec(folder, kernel_name=name, user=user, prefix=prefix))


def uninstall(name: str = KERNEL_NAME) -> bool:
    """Removes the kernelspec; False if there is none."""
    from jupyter_client.kernelspec import KernelSpecManager

    try:
        KernelSpecManager().remove_kernel_spec(name)
    except KeyError:
        return False
    return True


def installed() -> list[dict[str, str]]:
    """The kernelspecs that start this kernel: name, display_name, python, folder."""
    from jupyter_client.kernelspec import KernelSpecManager

    found = []
    for name, entry in sorted(KernelSpecManager().get_all_specs().items()):
        spec = entry["spec"]
        if KERNEL_MODULE in spec["argv"]:
            found.append({
                "name": name, "display_name": spec["display_name"], "python": spec["argv"][0],
                "folder": entry["resource_dir"],
            })  # fmt: skip
    return found
