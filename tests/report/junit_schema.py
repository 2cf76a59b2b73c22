"""What the JUnit schema of Jenkins' xunit plugin (junit-10.xsd) allows, as a table, and the check of a document."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping

TIME = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]{0,3})?")

_COUNTS = frozenset({"name", "time", "tests", "failures", "errors"})
_TEXT = frozenset({"type", "message"})

REQUIRED: Mapping[str, frozenset[str]] = {
    "testsuite": frozenset({"name", "tests", "failures", "errors"}),
    "testcase": frozenset({"name"}),
    "property": frozenset({"name", "value"}),
}

ALLOWED: Mapping[str, frozenset[str]] = {
    "testsuites": _COUNTS,
    "testsuite": _COUNTS
    | {"group", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url", "version"},
    "testcase": frozenset({"name", "time", "classname", "group"}),
    "failure": _TEXT,
    "error": _TEXT,
    "skipped": _TEXT,
    "properties": frozenset(),
    "property": frozenset({"name", "value"}),
    "system-out": frozenset(),
    "system-err": frozenset(),
}

CHILDREN: Mapping[str, frozenset[str]] = {
    "testsuites": frozenset({"testsuite"}),
    "testsuite": frozenset({"testsuite", "properties", "testcase", "system-out", "system-err"}),
    "testcase": frozenset({"skipped", "error", "failure", "system-out", "system-err"}),
    "properties": frozenset({"property"}),
}


def violations(document: bytes) -> list[str]:
    """Return what in ``document`` the schema does not allow; empty: it is valid."""
    root = ET.fromstring(document)
    wrong = [] if root.tag in ("testsuites", "testsuite") else [f"the root is {root.tag}"]
    return [*wrong, *(found for element in root.iter() for found in _of(element))]


def _of(element: ET.Element) -> Iterator[str]:
    tag, names = element.tag, set(element.attrib)
    if tag not in ALLOWED:
        yield f"{tag} is unknown"
        return
    yield from (f"{tag} has the attribute {name}" for name in sorted(names - ALLOWED[tag]))
    yield from (f"{tag} lacks the attribute {name}" for name in sorted(REQUIRED.get(tag, frozenset()) - names))
    allowed = CHILDREN.get(tag, frozenset())
    yield from (f"{tag} holds {child.tag}" for child in element if child.tag not in allowed)
    if tag in CHILDREN and (element.text or "").strip():
        yield f"{tag} holds text"
    if tag in ("testsuites", "testsuite") and not TIME.fullmatch(element.get("time", "")):
        yield f"{tag} has the time {element.get('time')}"
