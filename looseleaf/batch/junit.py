"""A batch run as JUnit XML, as CI servers read it: a suite for each notebook, a case for each code cell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final
from xml.etree import ElementTree as ET

from looseleaf.batch.cells import cell_key, is_executed
from looseleaf.batch.report import CellRecord, NotebookReport
from looseleaf.batch.run import is_system_reason

# Of each cell's text on one stream: its beginning and its end.
OUTPUT_CHARS_MAX: Final = 64_000
NAME_CHARS_MAX: Final = 120
_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
# What XML 1.0 has no way to write.
_NO_XML: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_of(notebooks: Sequence[tuple[NotebookReport, Any]], began: datetime, hostname: str) -> str:
    """The document for (report, executed notebook) pairs; `began` and `hostname` stand on every suite.

    A cell that may raise (`raises-exception`) and did passed. A cell that was not run is skipped. A failure that says
    something of the system is an error, any other a failure. Texts have no ANSI codes and no characters that XML
    lacks, and long ones lose their middle.
    """
    root = ET.Element("testsuites", name="looseleaf run")
    suites = [
        _suite(root, index, report, nb, began, hostname) for index, (report, nb) in enumerate(notebooks)
    ]
    _count(root, [case for suite in suites for case in suite.iter("testcase")])
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode")


def _suite(
    root: ET.Element, index: int, report: NotebookReport, nb: Any, began: datetime, hostname: str
) -> ET.Element:
    stamp = began.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    suite = ET.SubElement(
        root, "testsuite", name=_clean(report.notebook), id=str(index), package="", timestamp=stamp, hostname=hostname
    )
    properties = ET.SubElement(suite, "properties")
    for name in ("output", "outcome", "failure"):
        ET.SubElement(properties, "property", name=name, value=_clean(str(getattr(report, name))))
    records = {record.id: record for record in report.cells}
    told = False
    for number, cell in enumerate(nb.cells):
        if not is_executed(cell):
            continue
        key = cell_key(cell, number)
        failed = bool(report.failure) and key == report.failed_cell and not told
        told = told or failed
        _case(suite, report, cell, key, records.get(key), failed)
    if report.failure and not told:
        # It stopped before its first cell, or between two.
        case = ET.SubElement(suite, "testcase", name="notebook", classname=_clean(report.notebook), time="0")
        _problem(case, "error", report.failure, "")
    _count(suite, list(suite.iter("testcase")))
    return suite


def _case(
    suite: ET.Element, report: NotebookReport, cell: Any, key: str, record: CellRecord | None, failed: bool
) -> None:
    first = cell.source.strip().partition("\n")[0]
    case = ET.SubElement(
        suite, "testcase", name=_clean(f"{key}: {first}")[:NAME_CHARS_MAX], classname=_clean(report.notebook),
        time=f"{record.run_s if record else 0:.3f}",
    )  # fmt: skip
    if failed:
        errors = [output for output in cell.outputs if output.output_type == "error"]
        ename = errors[-1].ename if errors else report.failure.partition(":")[0]
        kind = "error" if report.outcome == "system_failed" or is_system_reason(ename) else "failure"
        _problem(case, kind, report.failure, "\n".join(errors[-1].traceback) if errors else "")
    elif record is None:
        ET.SubElement(case, "skipped", message="not run")
        return
    for stream, tag in (("stdout", "system-out"), ("stderr", "system-err")):
        text = "".join(o.text for o in cell.outputs if o.output_type == "stream" and o.name == stream)
        if text:
            ET.SubElement(case, tag).text = _shortened(_clean(text))


def _problem(case: ET.Element, kind: str, failure: str, traceback: str) -> None:
    first = _clean(failure).partition("\n")[0]
    name, _colon, message = first.partition(": ")
    ET.SubElement(case, kind, type=name, message=message or first).text = _shortened(_clean(traceback or failure))


def _count(element: ET.Element, cases: list[ET.Element]) -> None:
    element.set("tests", str(len(cases)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(attribute, str(sum(case.find(tag) is not None for case in cases)))
    element.set("time", f"{sum(float(case.get('time', '0')) for case in cases):.3f}")


def _clean(text: str) -> str:
    """`text` without terminal codes; what XML cannot hold is shown as its code point."""
    return _NO_XML.sub(lambda found: f"\\x{ord(found.group()):02x}", _ANSI.sub("", text))


def _shortened(text: str) -> str:
    if len(text) <= OUTPUT_CHARS_MAX:
        return text
    half = OUTPUT_CHARS_MAX // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
