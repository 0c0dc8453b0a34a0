"""The Jupyter messaging tests that every kernel must pass, on our kernelspec without a cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import jupyter_kernel_test as suite
import pytest

from looseleaf.kernel.install import kernel_spec

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def installed_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Our kernelspec where Jupyter finds it, and nobody's cluster or history."""
    folder = tmp_path_factory.mktemp("jupyter")
    spec_folder = folder / "kernels" / "looseleaf"
    spec_folder.mkdir(parents=True)
    env = {"LOOSELEAF_RUN_DIR": str(folder), "IPYTHONDIR": str(folder / "ipython")}
    (spec_folder / "kernel.json").write_text(json.dumps(kernel_spec(endpoint=str(folder / "nobody.sock"), env=env)))
    before = dict(os.environ)
    os.environ.update(JUPYTER_PATH=str(folder), JUPYTER_RUNTIME_DIR=str(folder / "runtime"))
    yield
    os.environ.clear()
    os.environ.update(before)


class TestLooseLeafKernel(suite.KernelTests):  # type: ignore[misc]
    """Each attribute is what the suite asks the kernel to do; see its documentation."""

    kernel_name = "looseleaf"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = [{"text": "zi", "matches": {"zip"}}, {"text": "pri", "matches": {"print"}}]
    complete_code_samples = ["1", "print('hello')", "def f(x):\n    return x\n\n", "%%gpu\nx = 1\n\n"]
    incomplete_code_samples = ["def f(x):", "print('''hello", "for i in range(2):"]
    invalid_code_samples = ["import = 7q"]
    code_page_something = "zip?"
    code_generate_error = "raise ValueError('wrong')"
    code_execute_result = [{"code": "1+2", "result": "3"}, {"code": "[1, 2]", "result": "[1, 2]"}]
    code_display_data = [
        {"code": "from IPython.display import HTML, display; display(HTML('<b>t</b>'))", "mime": "text/html"},
        {"code": "from IPython.display import Math, display; display(Math('x'))", "mime": "text/latex"},
    ]
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "search")
    code_history_search = "1+2"

    def test_interrupt_mode_is_message(self) -> None:
        assert self.km.kernel_spec.interrupt_mode == "message"
        assert Path(self.km.kernel_spec.argv[0]).exists()
