"""What a cell sets in the shell and in libraries stands in the next worker, too."""

# Cells stay in the form in which a person would write them.
# ruff: noqa: E501, ISC004
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

MakeWorker = Callable[..., Any]

# (what one cell does, what a later one in another worker shows of it)
SETTINGS = {
    "pandas options": (
        "import pandas as pd\npd.set_option('display.precision', 2)\npd.options.display.float_format = '{:.1f}'.format",
        "import pandas as pd\nprint(pd.get_option('display.precision'), pd.get_option('display.float_format')(2.55))",
        "2 2.5",
    ),
    "pandas options taken back": (
        "import pandas as pd\npd.set_option('display.precision', 2)\npd.reset_option('display.precision')",
        "import pandas as pd\nprint(pd.get_option('display.precision'), pd.get_option('display.max_columns'))",
        "6 20",
    ),
    "how results are printed": (
        "%precision 3\n%pprint",
        "f = get_ipython().display_formatter.formatters['text/plain']\nprint(f.float_precision, f.pprint)", "3 False",
    ),
    "how errors are shown": ("%xmode Minimal", "print(get_ipython().InteractiveTB.mode)", "Minimal"),
    "which expressions are shown": (
        "get_ipython().ast_node_interactivity = 'none'", "print(get_ipython().ast_node_interactivity)", "none",
    ),
    "magics of the session": (
        "from IPython.core.magic import register_line_magic, register_cell_magic\nfactor = 'x'\n"
        "@register_line_magic\ndef loud(line): return line.upper() + factor\n"
        "@register_cell_magic\ndef upper(line, cell): print(cell.upper())",
        "a = %loud abc\nprint(a)\nget_ipython().run_cell_magic('upper', '', 'def')", "ABCx\nDEF",
    ),
    "settings in context variables": (
        "import decimal, numpy as np\nnp.set_printoptions(precision=2)\nnp.seterr(divide='raise')\ndecimal.getcontext().prec = 4",
        "import decimal, numpy as np\nprint(np.array([1 / 3]), np.geterr()['divide'], decimal.Decimal(1) / 3)",
        "[0.33] raise 0.3333",
    ),
    "how tensors are printed": (
        "import torch\ntorch.set_printoptions(precision=1)", "import torch\nprint(torch.tensor([1 / 3]))", "tensor([0.3])",
    ),
    "logging": (
        "import logging, sys\nlogging.basicConfig(level=10, format='%(levelname)s %(message)s', stream=sys.stdout)\n"
        "logging.getLogger('noisy').setLevel(logging.ERROR)",
        "import logging\nlogging.debug('shown')\nlogging.getLogger('noisy').warning('not shown')", "DEBUG shown",
    ),
    "names for magics": ("%alias_magic -l tt timeit", "print('tt' in get_ipython().magics_manager.magics['line'])", "True"),
    "formatters of the session": (
        "class A: pass\ndef show(a): return 'shown'\n"
        "get_ipython().display_formatter.formatters['text/plain'].for_type(A, lambda a, p, c: p.text('an A'))",
        "print(get_ipython().display_formatter.format(A())[0]['text/plain'])", "an A",
    ),
    "extensions": ("%load_ext autoreload", "print(get_ipython().extension_manager.loaded)", "{'IPython.extensions.autoreload'}"),
    "formats of figures": (
        "%matplotlib inline\n%config InlineBackend.figure_formats = {'svg', 'png'}",
        "%matplotlib inline\nimport matplotlib.pyplot as plt\nf = plt.figure(figsize=(1, 1)); plt.plot([1]); plt.close(f)\n"
        "print(sorted(get_ipython().display_formatter.format(f)[0]), plt.get_backend())",
        "['image/png', 'image/svg+xml', 'text/plain'] inline",
    ),
    "formats set past the backend": (
        "%matplotlib inline\nfrom matplotlib_inline.backend_inline import set_matplotlib_formats\n"
        "set_matplotlib_formats('retina')\nimport matplotlib.pyplot as plt\nplt.plot([1])",
        "import matplotlib.pyplot as plt\nf = plt.figure(figsize=(1, 1)); plt.plot([1]); plt.close(f)\n"
        "print(sorted(get_ipython().display_formatter.format(f)[1]['image/png']))",
        "['height', 'width']",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_stand_in_the_next_worker(make_worker: MakeWorker, case: str) -> None:
    change, show, shown = SETTINGS[case]
    first = make_worker()
    assert first.run(change)["status"] == "ok", first.messages
    second = make_worker(first.store, prepare=False)
    second.prepare(["A", "factor", "get_ipython"])
    assert second.run(show, 2)["status"] == "ok", second.messages
    assert second.text() == f"{shown}\n"


def test_worker_looks_like_a_notebook_to_libraries(make_worker: MakeWorker) -> None:
    worker = make_worker()
    worker.prepare(imports=["tqdm.auto"])
    worker.run(
        "import tqdm.auto\nprint(tqdm.auto.tqdm.__mro__[1].__name__, get_ipython().kernel.get_parent())", request="r-1"
    )
    assert worker.text().startswith("tqdm_notebook {'header': {'msg_id': 'r-1',")


def test_filters_that_a_library_adds_at_its_import_are_there_in_a_session_that_did_not_import_it(
    make_worker: MakeWorker, tmp_path: Any
) -> None:
    module = "import warnings\nwarnings.filterwarnings('ignore', 'of_the_library')\n"
    (tmp_path / "library_with_filter.py").write_text(module)
    first = make_worker()
    first.run(f"import sys, warnings\nsys.path.insert(0, {str(tmp_path)!r})")
    second = make_worker(first.store, prepare=False)
    second.prepare(["warnings"], imports=["library_with_filter"])
    show = "print([f[1].pattern for f in warnings.filters if f[1] is not None and 'of_the' in f[1].pattern])"
    second.run(f"import library_with_filter\n{show}", 2)
    assert second.text() == "['of_the_library']\n"
    second.run("warnings.resetwarnings()", 3)
    third = make_worker(first.store, prepare=False)
    third.prepare(["warnings"], imports=["library_with_filter"])
    third.run(show, 4)
    assert third.text() == "[]\n"


def test_context_variables_keep_what_a_cell_of_the_same_worker_set(worker: Any) -> None:
    worker.run("import contextvars\nv = contextvars.ContextVar('v')\nv.set([1])")
    worker.run("v.get().append(2)\nprint(v.get())", 2)
    assert worker.text() == "[1, 2]\n"
    worker.run("import asyncio\nasync def f(): return v.get()\nprint(await f())", 3)
    assert worker.text() == "[1, 2]\n"
