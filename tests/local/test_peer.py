"""The adapter that a comparison of notebook state runs: each phase in a process of its own, over a real store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

CELLS = (
    "import numpy as np\n"
    "a = np.arange(1_000_000.); view = a[:10]; pair = {'a': a}; label = 'x'\n"
    "stuck = (i for i in range(3))\n"
    "def use(): return label"
)


def phase(folder: Path, code: str) -> Any:
    """Runs `code`, which sets `result`, with an adapter `a` and its namespace `ns`."""
    program = (
        "import json, __main__\nfrom looseleaf.local.peer import Adapter\n"
        f"a, ns, folder, cells = Adapter(), {{}}, {str(folder)!r}, {CELLS!r}\n"
        f"{code}\na.finish()\nprint(json.dumps(result))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_peer_moves_only_what_changed_and_restores_subsets_with_their_sharing(tmp_path: Path) -> None:
    saved = phase(tmp_path, """
a.start(folder, ns); a.cell(cells); a.save("all"); first = a.written
a.cell("a[3] = -7"); a.save("slice")
result = [first > 8_000_000, a.written - first, a.note]
""")
    # One region of 2 MiB.
    assert saved[0] is True and 0 < saved[1] < 2_200_000 and saved[2] == "stuck: GENERATOR"
    everything = "result = [sorted(ns), ns['pair']['a'] is ns['a'], ns['view'].base is ns['a'], float(ns['view'][3])]"
    found = phase(tmp_path, f"a.load_all(folder, ns)\nns.pop('__builtins__', None)\n{everything}")
    assert found == [["a", "label", "np", "pair", "use", "view"], True, True, -7.0]
    part = phase(tmp_path, "a.load_subset(folder, ns, ['use'])\nresult = [sorted(ns), ns['use']()]")
    assert part == [["label", "use"], "x"]


def test_peer_tells_by_name_what_was_refused(tmp_path: Path) -> None:
    phase(tmp_path, "a.start(folder, ns); a.cell(cells); a.save('all'); result = 0")
    text = phase(tmp_path, """
a.load_all(folder, ns)
try:
    eval("stuck.send", ns)
except Exception as error:
    result = ["stuck" in ns, str(error)]
""")
    assert text[0] is False and "refused: `stuck`: GENERATOR" in text[1]
