"""JUnit reports, checked against the rules of the schema that CI servers share."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree as ET

import nbformat.v4 as nbf
from batch_fixtures import notebook_of
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.batch.junit import OUTPUT_CHARS_MAX, junit_of
from looseleaf.batch.report import CellRecord, NotebookReport

# Element -> (required attributes, optional ones, children allowed).
COUNTS = {"tests", "failures", "errors", "skipped", "time"}
SCHEMA: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": (set(), {"name", *COUNTS}, {"testsuite"}),
    "testsuite": (
        {"name", "timestamp", "hostname", *COUNTS}, {"id", "package"},
        {"properties", "testcase", "system-out", "system-err"},
    ),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, set(), set()),
    "testcase": ({"name", "classname", "time"}, set(), {"failure", "error", "skipped", "system-out", "system-err"}),
    "failure": ({"type", "message"}, set(), set()),
    "error": ({"type", "message"}, set(), set()),
    "skipped": (set(), {"message"}, set()),
    "system-out": (set(), set(), set()),
    "system-err": (set(), set(), set()),
}  # fmt: skip
BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def check_schema(element: ET.Element) -> None:
    required, optional, children = SCHEMA[element.tag]
    assert required <= set(element.attrib) <= required | optional, (element.tag, element.attrib)
    tags = [child.tag for child in element]
    assert set(tags) <= children, (element.tag, tags)
    if element.tag == "testsuite":
        assert tags == sorted(tags, key=["properties", "testcase"].index)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", element.attrib["timestamp"])
    if element.tag == "testcase":
        assert sum(tag in ("failure", "error", "skipped") for tag in tags) <= 1
    if element.tag in ("testsuite", "testsuites"):
        cases = list(element.iter("testcase"))
        assert int(element.attrib["tests"]) == len(cases)
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(element.attrib[attribute]) == sum(case.find(tag) is not None for case in cases)
    if "time" in element.attrib:
        assert float(element.attrib["time"]) >= 0
    for child in element:
        check_schema(child)


def report(outcome: str, failure: str = "", cell: str = "", ran: int = 0, name: str = "a.ipynb") -> NotebookReport:
    records = [CellRecord(f"c{number}", run_s=0.5) for number in range(ran)]
    return NotebookReport(name, "o.ipynb", outcome, failure, cell, 1, 0.1, 1.0, records)


def parse(*notebooks: tuple[NotebookReport, Any]) -> ET.Element:
    text = junit_of(notebooks, BEGAN, "here")
    root = ET.fromstring(text.encode())
    check_schema(root)
    return root


def test_failed_cell_is_a_failure_with_its_traceback_and_later_ones_are_skipped() -> None:
    nb = notebook_of("print(1)", "raise E", "", "never")
    nb.cells[0].outputs = [nbf.new_output("stream", name="stdout", text="1\n")]
    nb.cells[1].outputs = [
        nbf.new_output("stream", name="stderr", text="warned"),
        nbf.new_output("error", ename="E", evalue="it <is>", traceback=["\x1b[0;31mline\x1b[0m 1", "E: x"]),
    ]  # fmt: skip
    suite = parse((report("cell_failed", "E: it <is> & \x1b[31mred", "c1", ran=2), nb))[0]
    assert [suite.get(name) for name in ("tests", "failures", "skipped", "errors")] == ["3", "1", "1", "0"]
    passed, failed, skipped = suite.iter("testcase")
    assert passed.get("name") == "c0: print(1)" and passed.get("time") == "0.500"
    assert passed.find("failure") is None and passed.find("system-out").text == "1\n"  # type: ignore[union-attr]
    failure = failed.find("failure")
    assert failure is not None and (failure.get("type"), failure.get("message")) == ("E", "it <is> & red")
    assert failure.text == "line 1\nE: x" and failed.find("system-err").text == "warned"  # type: ignore[union-attr]
    assert skipped.find("skipped") is not None


def test_system_failures_are_errors_wherever_they_happen() -> None:
    nb = notebook_of("a", "b")
    nb.cells[0].outputs = [nbf.new_output("error", ename="NO_CLUSTER", evalue="none", traceback=["NO_CLUSTER: none"])]
    root = parse(
        (report("system_failed", "NO_CLUSTER: none", "c0", ran=1), nb),
        (report("system_failed", "KERNEL_START_FAILED: it did not respond", "", name="b.ipynb"), notebook_of("a")),
        (report("skipped", name="c.ipynb"), notebook_of("a")),
        (report("system_failed", "KERNEL_DIED: ended", "c0", name="d.ipynb"), notebook_of("a")),
    )
    assert [suite.get("errors") for suite in root] == ["1", "1", "0", "1"]
    assert [suite.get("skipped") for suite in root] == ["1", "1", "1", "0"]
    assert root.get("tests") == "6" and root.get("errors") == "3"


def test_cell_that_may_raise_passes() -> None:
    nb = notebook_of("1/0", c0={"tags": ["raises-exception"]})
    nb.cells[0].outputs = [nbf.new_output("error", ename="ZeroDivisionError", evalue="", traceback=["..."])]
    assert parse((report("ok", ran=1), nb)).get("failures") == "0"


def test_long_output_loses_its_middle() -> None:
    nb = notebook_of("x")
    nb.cells[0].outputs = [nbf.new_output("stream", name="stdout", text="a" + "-" * 1_000_000 + "z")]
    text = parse((report("ok", ran=1), nb)).find(".//system-out").text  # type: ignore[union-attr]
    assert text is not None and len(text) < OUTPUT_CHARS_MAX + 100 and text[0] == "a" and text[-1] == "z"
    assert f"{1_000_002 - OUTPUT_CHARS_MAX} characters left out" in text


def test_cells_of_a_notebook_without_ids_are_told_by_their_place() -> None:
    nb = notebook_of("a", "b")
    for cell in nb.cells:
        del cell["id"]
    found = NotebookReport("a.ipynb", "o", "cell_failed", "E: x", "1", 1, 0.1, 1.0, [CellRecord("0"), CellRecord("1")])
    assert [case.get("name") for case in parse((found, nb)).iter("testcase")] == ["0: a", "1: b"]


@given(st.text(), st.text(), st.text(), st.text(st.characters(max_codepoint=0x9F)))
def test_any_text_gives_a_document_that_can_be_read(source: str, failure: str, name: str, output: str) -> None:
    nb = notebook_of("x" + source)
    nb.cells[0].outputs = [
        nbf.new_output("stream", name="stdout", text=output),
        nbf.new_output("error", ename=failure, evalue=output, traceback=[source, output]),
    ]
    parse((report("cell_failed", failure or "E", "c0", ran=1, name=name), nb))
