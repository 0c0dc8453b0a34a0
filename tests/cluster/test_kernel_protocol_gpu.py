"""The Jupyter messaging tests that every kernel must pass, with every cell moved to a worker."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import jupyter_kernel_test as suite
import pytest

from looseleaf.kernel.install import kernel_spec
from looseleaf.local.cluster import LocalCluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def installed_kernel(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Our kernelspec where Jupyter finds it, with the module's cluster."""
    folder = tmp_path_factory.mktemp("jupyter")
    spec_folder = folder / "kernels" / "looseleaf"
    spec_folder.mkdir(parents=True)
    env = {"IPYTHONDIR": str(folder / "ipython"), "OMP_NUM_THREADS": "1"}
    spec = kernel_spec(endpoint=str(cluster.kernel_socket("h0")), env=env)
    (spec_folder / "kernel.json").write_text(json.dumps(spec))
    before = dict(os.environ)
    os.environ.update(JUPYTER_PATH=str(folder), JUPYTER_RUNTIME_DIR=str(folder / "runtime"))
    yield
    os.environ.clear()
    os.environ.update(before)


class TestMovedCells(suite.KernelTests):  # type: ignore[misc]
    """Each attribute is what the suite asks the kernel to do; see its documentation."""

    kernel_name = "looseleaf"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "%%gpu\nprint('hello, world')"
    code_stderr = "%%gpu\nimport sys; print('test', file=sys.stderr)"
    code_page_something = "%%gpu\nget_ipython().run_line_magic('pinfo', 'zip')"
    code_generate_error = "%%gpu\nraise ValueError('wrong')"
    code_execute_result = [{"code": "%%gpu\n1+2", "result": "3"}, {"code": "%%gpu\n[1, 2]", "result": "[1, 2]"}]
    code_display_data = [
        {"code": "%%gpu\nfrom IPython.display import HTML, display; display(HTML('<b>t</b>'))", "mime": "text/html"},
        {"code": "%%gpu\nfrom IPython.display import Math, display; display(Math('x'))", "mime": "text/latex"},
    ]
    code_clear_output = "%%gpu\nfrom IPython.display import clear_output; clear_output()"

    def test_cells_ran_on_a_worker(self) -> None:
        self.flush_channels()
        reply, _messages = self.execute_helper(code=self.code_hello_world)
        assert reply["metadata"]["looseleaf"]["worker"] not in (None, self.km.provisioner.pid)
