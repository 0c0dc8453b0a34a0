"""`python -m looseleaf.kernel -f CONNECTION_FILE`: what the kernelspec starts."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Runs the kernel until it is shut down."""
    # As ipykernel's own launcher: a file of the notebook's folder must not shadow a library while we load.
    if sys.path and (sys.path[0] == "" or Path(sys.path[0]) == Path.cwd()):
        del sys.path[0]
    from ipykernel.kernelapp import IPKernelApp

    from looseleaf.kernel.kernel import LooseLeafKernel

    IPKernelApp.launch_instance(kernel_class=LooseLeafKernel)


if __name__ == "__main__":
    main()
