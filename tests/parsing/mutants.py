"""Calls with one defect each: the table that the drift test and ``bench/drift.py`` read.

A call is a list of pieces (tags, line ends, values); a mutant replaces, doubles or drops one of them, or puts words or
white space between two tags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "save",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
                "required": ["path", "text"],
            },
        },
    },
    {"type": "function", "function": {"name": "jobs", "parameters": {"type": "object", "properties": {}}}},
]

Call = tuple[str, dict[str, str]]

FIRST: Call = ("save", {"path": "a.md", "text": "Hello\nworld"})
SECOND: Call = ("save", {"path": "b.md", "text": "Second\ntext"})


class Piece(NamedTuple):
    """A piece of a call: its text, and for a tag its kind and the name it carries."""

    text: str
    kind: str = ""
    name: str = ""


class Mutant(NamedTuple):
    """A text with one defect, what the defect is, and the calls that were meant."""

    defect: str
    text: str
    calls: tuple[Call, ...]


VARIANTS: dict[str, tuple[str, ...]] = {
    "call_open": (
        "<tool_call", "<toolcall>", "<tool_calls>", "<tool_call >", "< tool_call>", "<Tool_call>", "<tool-call>",
        "tool_call>", "<tool_cal>", "<tool_call/>", "<tool_call>>", "<<tool_call>",
    ),
    "function_open": (
        "<function={0}", "<function={0} >", "<function= {0}>", "<function = {0}>", "<function:{0}>", "<function: {0}>",
        "<function {0}>", '<function name="{0}">', "<function name={0}>", '<function="{0}">', "<function='{0}'>",
        "<Function={0}>", "<FUNCTION={0}>", "<func={0}>", "<functions={0}>", "<fuction={0}>", "<funtcion={0}>",
        "<function={0}/>", "<function={0}>>", "<parameter={0}>", "function={0}>", "<function_call={0}>",
        "< function={0}>", "<<function={0}>",
    ),
    "parameter_open": (
        "<parameter={0}", "<parameter={0} >", "<parameter= {0}>", "<parameter = {0}>", "<parameter:{0}>",
        "<parameter: {0}>", "<parameter {0}>", '<parameter name="{0}">', "<parameter name={0}>", '<parameter="{0}">',
        "<parameter='{0}'>", "<Parameter={0}>", "<PARAMETER={0}>", "<param={0}>", "<params={0}>", "<parameters={0}>",
        "<paramter={0}>", "<parametre={0}>", "<parameter={0}/>", "<parameter={0}>>", "parameter={0}>",
        "< parameter={0}>", '<param name="{0}">', "<parameter1={0}>", "</parameter={0}>", "<<parameter={0}>",
    ),
    "parameter_close": (
        "</parameter1>", "</parameter_function>", "</parameter/>", "</parameters>", "</parameter >", "</ parameter>",
        "</param>", "</Parameter>", "</PARAMETER>", "</paramter>", "</parametre>", "</parameter", "/parameter>",
        "<parameter>", "<//parameter>", "<\\/parameter>", "</parameter>>", "< /parameter>", "</parameter={0}>",
        "<parameter={0}>", "</params>", "</parameter_end>", "<parameter/>", "</function>", "</parameter.>",
        "</par>", "</value>", "[/parameter]", "&lt;/parameter&gt;", "parameter>",
    ),
    "function_close": (
        "</function_invocation>", "</functions>", "</function >", "</ function>", "</Function>", "</FUNCTION>",
        "</func>", "</function/>", "</function1>", "</fuction>", "</function", "/function>", "<function>",
        "<//function>", "</function>>", "</function={0}>", "</function_call>", "< /function>", "</parameter>",
        "</tool_call>",
    ),
    "call_close": (
        "</tool_call", "</toolcall>", "</tool_calls>", "</tool_call >", "</ tool_call>", "</Tool_call>", "</tool-call>",
        "/tool_call>", "</tool_cal>", "<tool_call>", "</tool_call/>", "</tool_call>>", "<//tool_call>", "</function>",
    ),
}  # fmt: skip
"""Other spellings of each tag."""

WORDS = (
    "Now the next one.", "<!-- next -->", "\u00a0", "\u200b", "\f", "...", "# comment", "OK", "(done)", "\u3000",
)  # fmt: skip
"""What may stand where a tag is due."""

STRAYS = ("</think>", "<tool_call>", "</tool_call>", "<function>", "</function>", "<parameter>", "</parameter>", "<br>")
"""Tags too many."""

SPACES = ("\n\n", " ", "", "\r\n", "\n  ", "\n\t", "\n\n\n")
"""What may stand for the line end between two tags."""


def pieces_of(calls: Sequence[Call], *, one_wrapper: bool = False) -> list[Piece]:
    """Return the well-formed text of ``calls`` in pieces."""
    pieces: list[Piece] = []
    for index, (name, arguments) in enumerate(calls):
        if not one_wrapper or index == 0:
            pieces += [Piece("<tool_call>", "call_open"), Piece("\n")]
        pieces += [Piece(f"<function={name}>", "function_open", name), Piece("\n")]
        for argument, value in arguments.items():
            pieces += [Piece(f"<parameter={argument}>", "parameter_open", argument), Piece(f"\n{value}\n", "value")]
            pieces += [Piece("</parameter>", "parameter_close", argument), Piece("\n")]
        pieces += [Piece("</function>", "function_close", name), Piece("\n")]
        if not one_wrapper or index == len(calls) - 1:
            pieces += [Piece("</tool_call>", "call_close"), Piece("\n")]
    return pieces[:-1]


def changes(pieces: Sequence[Piece]) -> Iterator[tuple[str, int, int, str]]:
    """Yield every single defect: what it is, from which piece to which one, and what stands there instead."""
    for at, (text, kind, name) in enumerate(pieces):
        where = f"{kind} {name}".strip() + f" #{at}"
        if kind and kind != "value":
            yield f"{where} omitted", at, at + 1, ""
            if at + 1 < len(pieces) and not pieces[at + 1].kind:
                yield f"{where} omitted with its line end", at, at + 2, ""
            yield f"{where} doubled", at, at + 1, f"{text}\n{text}"
            yield f"{where} doubled on one line", at, at + 1, text + text
            for variant in VARIANTS[kind]:
                yield f"{where} as {variant}", at, at + 1, variant.format(name)
        elif not kind:
            around = f"{pieces[at - 1].kind} and {pieces[at + 1].kind} #{at}"
            for tag in STRAYS:
                yield f"{tag} between {around}", at, at + 1, f"\n{tag}\n"
            for words in WORDS:
                yield f"{words!r} between {around}", at, at + 1, f"\n{words}\n"
                yield f"{words!r} on the line between {around}", at, at + 1, f" {words}\n"
            for space in SPACES:
                yield f"{space!r} between {around}", at, at + 1, space
            if pieces[at - 1].kind.endswith("close") and pieces[at + 1].kind.endswith("close"):
                swapped = pieces[at + 1].text + text + pieces[at - 1].text
                yield f"swapped {around}", at - 1, at + 2, swapped


def mutants(calls: Sequence[Call], *, one_wrapper: bool = False) -> list[Mutant]:
    """Return every text with one defect of ``calls``, each once."""
    pieces = pieces_of(calls, one_wrapper=one_wrapper)
    found: dict[str, Mutant] = {}
    for defect, start, end, instead in changes(pieces):
        text = "".join(piece.text for piece in pieces[:start]) + instead
        text += "".join(piece.text for piece in pieces[end:])
        found.setdefault(text, Mutant(defect, text, tuple(calls)))
    found.pop("".join(piece.text for piece in pieces), None)
    return list(found.values())


def one_call_mutants() -> list[Mutant]:
    """Return the mutants of one call."""
    return mutants([FIRST])


def two_call_mutants() -> list[Mutant]:
    """Return the mutants of two calls: each in a wrapper of its own, and both in one."""
    return mutants([FIRST, SECOND]) + mutants([FIRST, SECOND], one_wrapper=True)


def verdict(mutant: Mutant, calls: Sequence[tuple[str, Any]]) -> str:
    """Return ``right`` (the calls that were meant), ``text`` (some are missing, none is false) or ``wrong``."""
    if list(calls) == list(mutant.calls):
        return "right"
    meant = iter(mutant.calls)
    return "text" if all(any(call == each for each in meant) for call in calls) else "wrong"
