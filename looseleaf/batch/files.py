"""Notebook files of a batch run: what is read, what is written, and what is refused before anything runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import nbformat

from looseleaf.errors import InvalidArgument

NOTEBOOK_BYTES_MAX: Final = 512 << 20
NOTEBOOKS_MAX: Final = 10_000


@dataclass(frozen=True)
class Job:
    """One notebook of the run: `nb` was read from `source`, runs in its folder, and is written to `output`."""

    source: Path
    output: Path
    nb: Any

    @property
    def folder(self) -> Path:
        """Where its kernel starts."""
        return self.source.resolve().parent


def plan_jobs(sources: Sequence[Path], output: Path, others: Sequence[Path | None] = ()) -> list[Job]:
    """The run's notebooks, all read and all outputs checked, before anything runs.

    `output` is a file for one notebook, and a folder, made if only it is missing, for several or if it is one already;
    into a folder no notebook that is read is overwritten.
    `others`: the run's other files, none of them a notebook that is read.
    Raises InvalidArgument `NOTEBOOK_MISSING`, `NOTEBOOK_UNREADABLE`, `OUTPUT_UNWRITABLE`, `OUTPUT_DUPLICATE` or
    `TOO_MANY_NOTEBOOKS`.
    """
    if len(sources) > NOTEBOOKS_MAX:
        raise InvalidArgument("TOO_MANY_NOTEBOOKS", f"at most {NOTEBOOKS_MAX} notebooks run together")
    into_folder = len(sources) > 1 or output.is_dir()
    if into_folder:
        _check_folder(output)
    outputs = [output / source.name if into_folder else output for source in sources]
    extra = [path for path in others if path is not None]
    for path in (*(outputs if output.is_dir() or not into_folder else ()), *extra):
        check_output(path)
    _refuse_duplicates([*outputs, *extra])
    # One notebook in its own place is meant; all else that would replace one is a slip.
    _refuse_sources(sources, [*outputs, *extra] if into_folder else extra)
    jobs = [Job(source, target, read_notebook(source)) for source, target in zip(sources, outputs, strict=True)]
    if into_folder:
        output.mkdir(exist_ok=True)
    return jobs


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InvalidArgument("OUTPUT_UNWRITABLE", f"{folder} is a file: several notebooks need a folder")
    if not folder.exists() and not (folder.resolve().parent.is_dir() and os.access(folder.resolve().parent, os.W_OK)):
        raise InvalidArgument("OUTPUT_UNWRITABLE", f"the folder {folder} cannot be made")


def _refuse_duplicates(paths: Sequence[Path]) -> None:
    seen: set[Path] = set()
    for path in paths:
        resolved = path.resolve()
        if resolved in seen:
            raise InvalidArgument(
                "OUTPUT_DUPLICATE",
                f"{path} would be written twice: run notebooks of one name into different folders; nothing was run",
            )
        seen.add(resolved)


def _refuse_sources(sources: Sequence[Path], outputs: Sequence[Path]) -> None:
    """No notebook that is read may be lost by naming a report, or a folder, which says nothing of its files."""
    read = {source.resolve() for source in sources}
    for output in outputs:
        if output.resolve() in read:
            text = f"{output} is one of the notebooks to run, and would be overwritten: name another place"
            raise InvalidArgument("OUTPUT_UNWRITABLE", text)


def read_notebook(path: Path) -> Any:
    """The notebook in format 4. Raises InvalidArgument `NOTEBOOK_MISSING` or `NOTEBOOK_UNREADABLE`."""
    try:
        if path.is_dir():
            text = f"{path} is a folder: name its notebooks, such as {path}/*.ipynb"
            raise InvalidArgument("NOTEBOOK_UNREADABLE", text)
        if path.stat().st_size > NOTEBOOK_BYTES_MAX:
            raise InvalidArgument("NOTEBOOK_UNREADABLE", f"{path} is larger than {NOTEBOOK_BYTES_MAX >> 20} MiB")
        return nbformat.read(os.fspath(path), as_version=4)  # type: ignore[no-untyped-call]
    except FileNotFoundError as error:
        raise InvalidArgument("NOTEBOOK_MISSING", f"there is no notebook {path}") from error
    except OSError as error:
        raise InvalidArgument("NOTEBOOK_UNREADABLE", f"{path} cannot be read: {error.strerror or error}") from error
    except (nbformat.ValidationError, AttributeError, KeyError, TypeError, ValueError) as error:
        first = str(error).partition("\n")[0]
        if not isinstance(error, (nbformat.ValidationError, ValueError)):
            # What the reader stumbles over in JSON of another shape, in words for programmers.
            first = f"its JSON is that of something else ({first})"
        raise InvalidArgument("NOTEBOOK_UNREADABLE", f"{path} is no notebook: {first}") from error


def check_output(path: Path) -> None:
    """Raises InvalidArgument `OUTPUT_UNWRITABLE` if a file cannot be written there."""
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise InvalidArgument("OUTPUT_UNWRITABLE", f"{path} cannot be written: name a file in an existing folder")


def write_notebook(nb: Any, path: Path) -> None:
    """Writes the executed notebook, whole or not at all."""
    write_text(path, nbformat.writes(nb))  # type: ignore[no-untyped-call]


def write_text(path: Path, text: str) -> None:
    """Writes the file, whole or not at all, with a newline at its end."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
    temporary.replace(path)
