"""What a session is called."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from looseleaf.kernel.title import TITLE_CHARS_MAX, notebook_of, title_of


@pytest.mark.parametrize(
    ("environ", "namespace", "title"),
    [
        ({"JPY_SESSION_NAME": "/n/a.ipynb"}, {"__vsc_ipynb_file__": "/v.ipynb"}, "/n/a.ipynb"),
        ({"LOOSELEAF_SESSION_TITLE": "mine", "JPY_SESSION_NAME": "/n/a.ipynb"}, {}, "mine"),
        ({"JPY_SESSION_NAME": ""}, {"__vsc_ipynb_file__": "/v.ipynb"}, "/v.ipynb"),
        ({}, {"__vsc_ipynb_file__": "v" * 1000}, "v" * TITLE_CHARS_MAX),
    ],
)
def test_title_is_the_notebooks_path(environ: dict[str, str], namespace: dict[str, Any], title: str) -> None:
    assert title_of(environ, namespace) == title


@pytest.mark.parametrize("namespace", [{}, {"__vsc_ipynb_file__": 3}])
def test_title_without_a_front_end_that_tells_is_the_folder(
    namespace: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert title_of({}, namespace) == f"a notebook in {tmp_path}"
    tmp_path.rmdir()
    assert title_of({}, namespace) == ""


@pytest.mark.parametrize(
    ("launchers", "namespace", "path"),
    [
        ({}, {}, "/n/a.ipynb"),
        ({"JPY_SESSION_NAME": "/n/outer.ipynb"}, {}, "/n/a.ipynb"),
        ({"JPY_SESSION_NAME": "/n/a.ipynb"}, {}, ""),
        ({"JPY_SESSION_NAME": "/n/a.ipynb"}, {"__vsc_ipynb_file__": "/n/v.ipynb"}, "/n/v.ipynb"),
    ],
)
def test_path_that_the_launcher_had_itself_is_of_another_notebook(
    launchers: dict[str, str], namespace: dict[str, Any], path: str
) -> None:
    # As papermill that a cell has started, which waits for its kernel.
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=launchers) as launcher:
        assert launcher.stdin is not None and launcher.stdout is not None
        # It runs: while a program is being loaded the system shows no variables of it.
        launcher.stdin.write(b"\n")
        launcher.stdin.flush()
        assert launcher.stdout.read(1) == b"\n"
        environ = {"JPY_SESSION_NAME": "/n/a.ipynb", "JPY_PARENT_PID": str(launcher.pid)}
        assert notebook_of(environ, namespace) == path
        # It may end before its kernel.
        launcher.kill()
    assert notebook_of(environ, namespace) == path
