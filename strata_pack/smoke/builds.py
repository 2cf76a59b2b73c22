"""Recognises a server's build of llama.cpp, and lists builds with known differences in request handling.

The expected capabilities of a template are recorded for the embedded build. Another build may derive others from the
same template; such a difference is reported with the build's number, but is not a fault of the pack.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from strata_pack.chat.golden.check import CaseResult
from strata_pack.chat.render.template import ChatTemplate, TemplateError
from strata_pack.llama.answers import Props
from strata_pack.llama.runtimes import Runtime, embedded

_UNKNOWN = re.compile(r"|b[01]-\w+")
"""Build numbers of builds without a known number: none, b0, or b1 for a clone with one commit."""

JOINED_PARTS = "it joins the text parts of a message with a line feed before the template sees them"


def build_name(runtime: Runtime | None, props: Props) -> str:
    """Return the name of the build: its number, or the package and version of an embedded build."""
    if not _UNKNOWN.fullmatch(props.build):
        return props.build
    if runtime is not None and runtime.details.get("llama_cpp"):
        return f"{runtime.details['llama_cpp']} ({runtime.origin})"
    package = None if runtime is None else runtime.package_version
    if package is None:
        return "a build without a known number"
    number = package.partition("+")[0].rpartition(".")[2]
    return f"b{number} (xllamacpp {package})"


def is_recorded(runtime: Runtime | None) -> bool:
    """Return whether this is the build for which capabilities and differences are recorded: the embedded build."""
    package = None if runtime is None else runtime.package_version
    return package is not None and package.partition("+")[0] == embedded().package_version


def difference_of_build(result: CaseResult, template: ChatTemplate, caps: Mapping[str, Any]) -> str | None:
    """Return why a golden case differs on a build with these capabilities, None if nothing known explains it.

    The explanation is verified: the case is rendered with the build's known change of the request.
    """
    case = result.case
    if result.got is None or caps.get("supports_typed_content"):
        return None
    messages = [_parts_joined(message) for message in case.messages]
    if messages == case.messages:
        return None
    inputs = {key: value for key, value in case.inputs().items() if key not in ("messages", "tools")}
    try:
        rendered = template.render(messages, case.tools, **inputs)
    except TemplateError:
        return None
    return JOINED_PARTS if rendered == result.got else None


def _parts_joined(message: Any) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list) or not all(isinstance(part, dict) and "text" in part for part in content):
        return message
    return {**message, "content": "\n".join(str(part["text"]) for part in content)}
