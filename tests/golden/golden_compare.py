"""Whether two executed notebooks show the same, apart from what no two runs share (times, addresses, process ids)."""

from __future__ import annotations

import base64
import re
import struct
from dataclasses import dataclass
from typing import Any

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
# What varies from run to run on any kernel, with what stands for it.
_VARIES = (
    (re.compile(r"(CPU times: |Wall time: )[^\n]*"), r"\1..."),
    (re.compile(r"\b\d+(\.\d+)? [mµnu]?s ± [^\n]*"), "... per loop"),
    (re.compile(r"\b0x[0-9a-fA-F]{6,}\b"), "0x..."),
    (re.compile(r"/tmp/ipykernel_\d+/\d+\.py"), "<cell>"),
    # A tensor's history does not move with it; what stands for it says so by its name.
    (re.compile(r"grad_fn=<\w+>"), "grad_fn=<...>"),
    (re.compile(r"<ipython-input-\d+-[0-9a-f]+>"), "<cell>"),
)


@dataclass(frozen=True)
class Difference:
    """One place where the notebooks differ."""

    cell_id: str
    what: str
    reference: Any
    found: Any

    def __str__(self) -> str:
        return f"cell {self.cell_id}: {self.what}\n  reference: {self.reference!r}\n  found:     {self.found!r}"


def compare(reference: Any, found: Any) -> list[Difference]:
    """All differences of two executed notebooks of the same cells."""
    differences = []
    ours = [cell for cell in found.cells if cell.cell_type == "code"]
    theirs = [cell for cell in reference.cells if cell.cell_type == "code"]
    if [cell.source for cell in theirs] != [cell.source for cell in ours]:
        return [Difference("-", "the notebooks have other cells", len(theirs), len(ours))]
    for one, other in zip(theirs, ours, strict=True):
        differences += _compare_cell(one, other)
    return differences


def _compare_cell(reference: Any, found: Any) -> list[Difference]:
    cell_id = reference.get("id", "?")
    differences = []
    if reference.execution_count != found.execution_count:
        differences.append(Difference(cell_id, "number", reference.execution_count, found.execution_count))
    theirs, ours = normalised_outputs(reference), normalised_outputs(found)
    kinds = [[output["output_type"] for output in outputs] for outputs in (theirs, ours)]
    if kinds[0] != kinds[1]:
        return [*differences, Difference(cell_id, "kinds of outputs", *kinds)]
    for position, (one, other) in enumerate(zip(theirs, ours, strict=True)):
        for key in sorted({*one, *other}):
            if one.get(key) != other.get(key):
                what = f"output {position + 1} ({one['output_type']}), {key}"
                differences.append(Difference(cell_id, what, one.get(key), other.get(key)))
    return differences


def normalised_outputs(cell: Any) -> list[dict[str, Any]]:
    """The cell's outputs as plain maps: texts without what varies, images by their size.

    What stdout and stderr say between two other outputs is one text each: no kernel keeps their order to one another.
    """
    outputs: list[dict[str, Any]] = []
    for output in cell.outputs:
        kind = output["output_type"]
        if kind == "stream":
            last = outputs[-1] if outputs and outputs[-1]["output_type"] == "streams" else None
            if last is None:
                last = {"output_type": "streams", "stdout": "", "stderr": ""}
                outputs.append(last)
            last[output["name"]] += output["text"]
        elif kind == "error":
            lines = "\n".join(output["traceback"])
            error = {"ename": output["ename"], "evalue": output["evalue"], "traceback": lines}
            outputs.append({"output_type": kind, **error})
        else:
            data = {f"data {mime}": _plain(mime, value) for mime, value in output["data"].items()}
            outputs.append({"output_type": kind, "number": output.get("execution_count"), **data})
    return [{key: _text(value) for key, value in output.items()} for output in outputs]


def _plain(mime: str, value: Any) -> Any:
    if mime == "image/png":
        return f"PNG of {'x'.join(map(str, png_size(base64.b64decode(value))))} pixels"
    return value


def png_size(data: bytes) -> tuple[int, int]:
    """Width and height in pixels."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n"), "not a PNG"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    value = _ANSI.sub("", value)
    for pattern, replacement in _VARIES:
        value = pattern.sub(replacement, value)
    return value
