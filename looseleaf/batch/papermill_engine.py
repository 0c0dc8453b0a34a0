"""papermill's engine `looseleaf`: `papermill --engine looseleaf IN.ipynb OUT.ipynb -p NAME VALUE`.

Only papermill imports this module, by the entry point `papermill.engine`; it needs the extra `papermill`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine
from papermill.log import logger
from papermill.utils import merge_kwargs, remove_args

from looseleaf.batch.client import BatchClient
from looseleaf.batch.pool import open_pool
from looseleaf.batch.run import environment_of
from looseleaf.errors import InvalidArgument
from looseleaf.kernel.install import KERNEL_MODULE
from looseleaf.kernel_config import KernelConfig


class PapermillBatchClient(PapermillNotebookClient, BatchClient):  # type: ignore[misc]
    """papermill's way through a notebook, with each cell run as BatchClient does."""


class LooseLeafEngine(NBClientEngine):  # type: ignore[misc]
    """Runs notebooks on the LooseLeaf kernel, whatever Python kernel their metadata names, which stays as it is.

    A kernelspec of ours that is named is started as it is, with its own endpoint. Else GPU cells go where
    `looseleaf run` sends them: LOOSELEAF_ENDPOINT, the running cluster, or one that is started for the notebook.
    """

    @classmethod
    def nb_kernel_name(cls, nb: Any, name: str | None = None) -> str:
        """As papermill's; a notebook that names no kernel gets ours."""
        found = name or nb.metadata.get("kernelspec", {}).get("name")
        return str(found or "looseleaf")

    @classmethod
    def nb_language(cls, nb: Any, language: str | None = None) -> str:
        """As papermill's; a notebook that names no language is Python."""
        kernelspec, info = (nb.metadata.get(key, {}) for key in ("kernelspec", "language_info"))
        return str(language or info.get("name") or kernelspec.get("language") or "python")

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man: Any,
        kernel_name: str,
        log_output: bool = False,
        stdout_file: Any = None,
        stderr_file: Any = None,
        start_timeout: int = 60,
        execution_timeout: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Runs the notebook of `nb_man`; papermill's options mean what they mean there.

        Raises InvalidArgument `KERNEL_NOT_PYTHON`, and as `open_pool` and nbclient do.
        """
        spec = _own_spec(kernel_name)
        options = merge_kwargs(
            remove_args(["input_path", "timeout", "startup_timeout", "kernel_name", "km"], **kwargs),
            timeout=execution_timeout or kwargs.get("timeout"), startup_timeout=start_timeout, log=logger,
            log_output=log_output, stdout_file=stdout_file, stderr_file=stderr_file,
        )  # fmt: skip
        if spec is not None:
            return PapermillBatchClient(nb_man, endpoint="", spec=spec, **options).execute()
        with open_pool(KernelConfig.load().endpoint, None, None) as pool:
            env = environment_of(pool.embedded)
            return PapermillBatchClient(nb_man, endpoint=pool.endpoint, env=env, **options).execute()


def _own_spec(kernel_name: str) -> Mapping[str, Any] | None:
    """The named kernelspec if it is one of ours; None for any other Python.

    Raises InvalidArgument `KERNEL_NOT_PYTHON` for other languages.
    """
    try:
        found = KernelSpecManager().get_kernel_spec(kernel_name)
    except NoSuchKernel:
        # Where only we are installed a notebook may well name a kernel of another machine.
        return None
    if str(found.language).lower() not in ("", "python"):
        raise InvalidArgument(
            "KERNEL_NOT_PYTHON",
            f"the kernel {kernel_name} runs {found.language}; the engine looseleaf runs Python only. Nothing was run",
        )
    return found.to_dict() if KERNEL_MODULE in found.argv else None
