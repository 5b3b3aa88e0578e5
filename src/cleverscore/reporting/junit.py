"""Checks of a gate as JUnit XML, for release pipelines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from cleverscore.reporting.files import write_file
from cleverscore.reporting.gate import Check, Result


def write_junit(made: Sequence[Check], run: str, out: Path, *, strict: bool = False) -> None:
    """Write the checks of a run to the file `out`, one test case per check, with the run's name as its class.

    An undecided check is a skipped test case, or with `strict` a failed one.
    """
    failing = {Result.FAIL, Result.UNDECIDED} if strict else {Result.FAIL}
    failed = sum(check.result in failing for check in made)
    skipped = sum(check.result is Result.UNDECIDED for check in made) if not strict else 0
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        suites,
        "testsuite",
        name="cleverscore gate",
        tests=str(len(made)),
        failures=str(failed),
        errors="0",
        skipped=str(skipped),
    )
    for check in made:
        case = ElementTree.SubElement(suite, "testcase", classname=_xml(run), name=_xml(check.name))
        if check.result in failing:
            ElementTree.SubElement(case, "failure", message=_xml(check.text)).text = _xml(check.text)
        elif check.result is Result.UNDECIDED:
            ElementTree.SubElement(case, "skipped", message=_xml(f"undecided: {check.text}"))
        else:
            ElementTree.SubElement(case, "system-out").text = _xml(check.text)
    write_file(out, ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True))


def _xml(text: str) -> str:
    """Text with the characters that XML does not allow replaced by U+FFFD."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
