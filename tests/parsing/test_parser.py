"""The interface, the texts between calls, and when text is let go."""

from __future__ import annotations

import asyncio
import gc
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import strata_pack.parsing
from strata_pack.parsing import Event, OutputParser, aparse, parse, thinking_open
from strata_pack.parsing.held import HeldText
from tests.parsing.invariants import check, strict_json

TOOLS: list[dict[str, Any]] = [
    {"name": "save", "parameters": {"properties": {"path": {"type": "string"}, "n": {"type": "integer"}}}},
    {"name": "jobs", "parameters": {"properties": {}}},
]
JOBS = "<tool_call>\n<function=jobs>\n</function>\n</tool_call>"
SAVE = (
    "<tool_call>\n<function=save>\n<parameter=path>\na\n</parameter>\n"
    "<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>"
)
INDENTED = "  " + JOBS.replace("\n", "\n  ")
BARE = "<function=jobs>\n</function>"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>user\n<think> is a tag<|im_end|>\n<|im_start|>assistant\n", False),
        ("<|im_start|>user\n</think> closes<|im_end|>\n<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\nLet me begin with", True),
        ("[INST] hi [/INST]<think>\n", True),
        ("[INST] <think> hi [/INST]", False),
        ("", False),
    ],
)
def test_thinking_is_read_off_the_generation_prompt(prompt: str, expected: bool) -> None:
    assert thinking_open(prompt) is expected
    assert OutputParser.for_prompt(prompt, tools=[]).in_thinking is expected


@pytest.mark.parametrize("option", [{"implicit_end": "maybe"}, {"call_format": "yaml"}])
def test_an_unknown_policy_or_format_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be one of"):
        OutputParser(**option)


def test_a_strict_policy_that_refuses_two_functions_in_one_wrapper_loses_no_white_space() -> None:
    text = f"Go.\n<tool_call>\n{BARE}\n\n{BARE}\n</tool_call>\nDone.\n"
    assert check(text, [30, 50], "stop", thinking=True, tools=TOOLS, implicit_end="strict").reasoning == text


def test_a_finished_parser_takes_no_more_text() -> None:
    parser = OutputParser()
    parser.finish()
    assert parser.finish() == []
    with pytest.raises(RuntimeError, match="finished"):
        parser.feed("x")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"a\n\n{JOBS}\n\nb", "a\nb", 1),
        (f"a{JOBS}b", "ab", 1),
        (f"a\n{JOBS}b", "a\nb", 1),
        (f"a {JOBS} b", "a  b", 1),
        (f"\n{JOBS}\n{JOBS}\n", "", 2),
        (f"a\n{JOBS}\n{JOBS}\nb\n", "a\nb\n", 2),
        ("no call\n\n", "no call\n\n", 0),
        (f"{JOBS}\n</tool_call>\nb", "b", 1),
        (f"x\n{BARE}\n</tool_call>\ny", "x\ny", 1),
        (f"x\n{BARE}", "x", 1),
        (f"x {BARE}", f"x {BARE}", 0),
        ("x\n<function=other>\n</function>", "x\n<function=other>\n</function>", 0),
        (f"- item\n  ```\n{INDENTED}\n  ```\n", f"- item\n  ```\n{INDENTED}\n  ```\n", 0),
        (f"~~~\n{JOBS}\n~~~\n{JOBS}", f"~~~\n{JOBS}\n~~~", 1),
        (f"Put ``{JOBS}`` there.", f"Put ``{JOBS}`` there.", 0),
        (f"Put `{JOBS}` there.\n{JOBS}", f"Put `{JOBS}` there.", 1),
        (f"A stray ` here: {JOBS}", "A stray ` here: ", 1),
        (f"A stray ` up here.\n{JOBS}\nAnd ` here.", "A stray ` up here.\nAnd ` here.", 1),
        (f"`x` and {JOBS}", "`x` and ", 1),
        ("<tool_call>" * 3, "<tool_call>" * 3, 0),
        (f"<tool_call>\n{JOBS}", "<tool_call>", 1),
        (f"<tool_call>\nan <tool_call> x\n{BARE}", f"<tool_call>\nan <tool_call> x\n{BARE}", 0),
        (f"<tool_call>\nx\n</tool_call>\n{BARE}", "<tool_call>\nx\n</tool_call>", 1),
        ('<tool_call>\n{"name": "jobs"}\n</tool_call>', "", 1),
        ('<tool_call>\n{"name": 5, "arguments": {}}\n</tool_call>', None, 0),
        ('<tool_call>\n{"name": "jobs", "arguments": [1]}\n</tool_call>', None, 0),
        ('<tool_call>\n{"name": "jobs", "arguments": "no json"}\n</tool_call>', None, 0),
        ('<tool_call>\n{"name": "jobs", "arguments": {"x": NaN}}\n</tool_call>', "", 1),
        ('<tool_call>\n{"name": "jobs", "arguments": {}}', "", 1),
        (f'<tool_call>\n{{"name": "jobs", "arguments": {{}}}}\n{JOBS}', "", 2),
        ('<tool_call>\n{"name": "jobs", "arguments": {"x": "' + "[" * 300 + '"}}\n</tool_call>', "", 1),
        ('<tool_call>\n{"name": "jobs", "arguments": {"x": ' + "[" * 300 + "]" * 300 + "}}\n</tool_call>", None, 0),
    ],
)
def test_the_answer_around_calls(text: str, content: str | None, calls: int) -> None:
    outcome = check(text, [4, 11, 30], "stop", thinking=False, tools=TOOLS)
    assert outcome.content == (text if content is None else content)
    assert len(outcome.calls) == calls


@pytest.mark.parametrize(
    ("text", "thinking", "reasoning", "content"),
    [
        ("\n<think>\nr\n</think>\n\nc", True, "r\n", "c"),
        ("<think>\r\nr</think>c", False, "r", "c"),
        ("<think>r", False, "r", ""),
        (" <thinking> c", False, "", " <thinking> c"),
        ("r</think>\n \n</think>\n\nc", True, "r", "c"),
        ("r</think></think></think>c", True, "r", "</think>c"),
        ("r `</think>` r</think>c", True, "r `</think>` r", "c"),
        ("r `</think>", True, "r `", ""),
        (f"r\n{JOBS}</think> c", True, "r\n", " c"),
        (f"r\n{JOBS}\nmore\n</think>\n\nc</think>", True, "r\n", "more\nc</think>"),
        (f"r\n{JOBS}\n`</think>` more", True, "r\n", "`</think>` more"),
        ("r<th", True, "r<th", ""),
        ("", True, "", ""),
    ],
)
def test_where_the_thinking_ends(text: str, thinking: bool, reasoning: str, content: str) -> None:
    outcome = check(text, [2, 5, 9], "stop", thinking=thinking, tools=TOOLS)
    assert (outcome.reasoning, outcome.content) == (reasoning, content)


@pytest.mark.parametrize(
    "delta", ["a < b", "<b>", "</th", "x <tool_calls", "\n<functional> ", "#include <func", "&lt;"]
)
def test_text_that_can_become_no_tag_is_let_go_at_once(delta: str) -> None:
    parser = OutputParser(thinking=False, tools=TOOLS)
    assert "".join(event.text for event in parser.feed(delta)) == delta
    assert not parser.pending


@pytest.mark.parametrize("delta", ["x <", "x <tool_c", "\n", "x\n<func", "<tool_call>\n \n"])
def test_text_that_may_become_a_tag_is_pending(delta: str) -> None:
    parser = OutputParser(thinking=False, tools=TOOLS)
    parser.feed(delta)
    assert parser.pending


def test_a_reasoning_budget_can_ask_whether_a_call_is_being_written_in_the_thinking() -> None:
    parser = OutputParser(tools=TOOLS)
    parser.feed("Go.\n")
    assert (parser.pending, parser.in_thinking, parser.in_implicit_call) == (False, True, False)
    parser.feed("<tool_call>\n<function=save>\n<parameter=path>\nhalf")
    assert (parser.pending, parser.in_thinking, parser.in_implicit_call) == (True, True, True)
    parser.feed("\n</parameter>\n</function>\n</tool_call>")
    assert (parser.in_thinking, parser.in_implicit_call) == (False, False)


def test_a_streamed_string_is_sent_while_it_is_written() -> None:
    parser = OutputParser(thinking=False, tools=TOOLS, stream_tools=True)
    parser.feed("<tool_call>\n<function=save>\n<parameter=path>\n")
    events = parser.feed("some text")
    assert [(event.kind, event.text) for event in events] == [("tool_args", "some text")]
    assert not parser.pending
    assert parser.feed("\n") == []
    assert parser.pending
    assert [event.text for event in parser.feed("more")] == ["\\nmore"]


def test_a_value_that_is_no_string_is_sent_when_it_is_complete() -> None:
    parser = OutputParser(thinking=False, tools=TOOLS, stream_tools=True)
    parser.feed("<tool_call>\n<function=save>\n<parameter=n>\n1")
    assert parser.feed("0") == []
    assert parser.feed("0\n</parameter>\n</function>\n</tool_call>")[0].text == '{"n": 100}'


def test_an_implicit_call_is_delivered_all_at_once_also_when_streaming() -> None:
    parser = OutputParser(tools=TOOLS, stream_tools=True)
    assert [event.kind for event in parser.feed("Go.\n" + SAVE[:-1])] == ["reasoning"]
    assert [event.kind for event in parser.feed(">")] == ["tool_start", "tool_args", "tool_call"]


def test_an_announced_call_that_is_cut_is_left_open_and_not_repeated() -> None:
    parser = OutputParser(thinking=False, tools=TOOLS, stream_tools=True)
    events = parser.feed("On it.\n" + SAVE[:60]) + parser.finish("length")
    assert [event.kind for event in events] == ["content", "tool_start", "tool_args"]
    with pytest.raises(ValueError, match="Unterminated"):
        strict_json("".join(event.text for event in events if event.kind == "tool_args"))
    assert parser.counters.unfinished_calls == 1


def test_no_tools_means_that_nothing_is_a_call() -> None:
    reply = parse(f"r\n{JOBS}\n</think>\n{JOBS}", tools=[])
    assert (reply.reasoning, reply.content, reply.calls) == (f"r\n{JOBS}\n", JOBS, ())


WRITE = "<function=save>\n<parameter=path>\n{0}\n</parameter>\n<parameter=n>\n{1}\n</parameter>\n</function>\n"


@pytest.mark.parametrize("opener", ["<parameter=save>\n", "<parameter=write>\n", "", "Now:\n", "<functoin=save>\n"])
def test_a_second_call_with_a_drifted_opener_gives_the_first_one_nothing(opener: str) -> None:
    second = opener + WRITE.format("b", 2).removeprefix("<function=save>\n")
    outcome = check(f"<tool_call>\n{WRITE.format('a', 1)}{second}</tool_call>", [], "stop", thinking=False, tools=TOOLS)
    assert outcome.calls[:1] in ([], [("save", {"path": "a", "n": 1})])
    assert all(arguments in ({"path": "a", "n": 1}, {"path": "b", "n": 2}) for _, arguments in outcome.calls)


@pytest.mark.parametrize("behind", ["\nThen I will fix it.\n", " and on", "\n\n# Next\n", "x"])
def test_nothing_is_lost_after_an_open_backtick_and_words_in_a_call(behind: str) -> None:
    call = SAVE.replace("</function>\n", "</function>\n(running)\n")
    outcome = check("Look at `a: " + call + behind, [12 + len(call)], "stop", thinking=False, tools=TOOLS)
    assert len(outcome.calls) == 1
    assert outcome.content.endswith(behind.lstrip("\n"))


@pytest.mark.parametrize(
    "refused",
    [
        '<tool_call>\n{"name": "jobs", "arguments": [1]}\n</tool',
        "<tool_call>\n<function=save>\n<parameter=path>\na\n\n</function>\n</tool",
    ],
)
def test_half_a_closing_tag_after_a_refused_call_is_not_lost(refused: str) -> None:
    assert check(refused, [9], "stop", thinking=False, tools=TOOLS).content == refused


@pytest.mark.parametrize("form", ["xml", "json"])
def test_half_a_closing_tag_after_a_call_that_strict_refuses_is_not_lost(form: str) -> None:
    call = "<function=other>\n</function>" if form == "xml" else '{"name": "other", "arguments": {}}'
    refused = f"<tool_call>\n{call}\n</tool"
    options: dict[str, Any] = {"thinking": True, "tools": TOOLS, "implicit_end": "strict", "call_format": form}
    assert check(refused, [9], "stop", **options).reasoning == refused


@pytest.mark.parametrize("name", ["", " "])
def test_a_tool_without_a_name_is_none(name: str) -> None:
    text = "<tool_call>\n<function=<paramet"
    assert check(text, [21], "stop", thinking=False, tools=[{"name": name}]).content == text


def test_a_second_bracket_after_a_misspelt_closing_tag_is_content_for_every_cut() -> None:
    misspelt = JOBS.replace("</tool_call>", "</tol_call>>")
    assert check(f"{misspelt} b", [3], "stop", thinking=False, tools=TOOLS).content == "> b"


@pytest.mark.parametrize("opener", ["<tool_call><function=save>", "<function=save><parameter=path>a</parameter>"])
@pytest.mark.parametrize("length", [401, 500])
def test_a_remark_that_is_too_long_is_text_for_every_cut(opener: str, length: int) -> None:
    check(f"{opener}{'w' * length}", [30, 300], "stop", thinking=False, tools=TOOLS)


def test_text_after_an_announced_call_that_failed_is_read_the_same_without_streaming() -> None:
    cut = "<tool_call>\n<function=save>\n<parameter=path>\na\n</parameter>\n</tool_call>"
    outcome = check(f"{cut}{BARE}", [], "stop", thinking=False, tools=TOOLS)
    assert outcome.calls == []


def test_an_undeclared_function_is_delivered_and_counted() -> None:
    reply = parse("<tool_call>\n<function=other>\n</function>\n</tool_call>", thinking=False, tools=TOOLS)
    assert (reply.calls[0].name, reply.counters.undeclared_calls) == ("other", 1)


def test_the_same_parameter_twice_the_last_one_wins() -> None:
    text = SAVE.replace("<parameter=n>\n3", "<parameter=path>\nb")
    assert parse(text, thinking=False, tools=TOOLS).calls[0].arguments == {"path": "b"}


def test_aparse_yields_the_events_of_an_asynchronous_reply() -> None:
    async def deltas() -> AsyncIterator[str]:
        for character in f"r</think>\n\nc\n{JOBS}":
            yield character

    async def read() -> list[Event]:
        parser = OutputParser(tools=TOOLS)
        events = [event async for event in aparse(deltas(), finish_reason=lambda: "stop", parser=parser)]
        assert not parser.counters.ended_inside_thinking
        return events

    assert [event.kind for event in asyncio.run(read())] == ["reasoning", "content", "tool_call"]


def test_the_parser_imports_nothing_but_the_standard_library() -> None:
    program = (
        "import sys; import strata_pack.parsing;"
        "print(sorted({m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    outside = {name for name in eval(done.stdout) if not name.startswith(("_", "sitecustomize"))}
    assert outside <= {"strata_pack"}


def test_the_parser_can_be_imported_alone(tmp_path: Path) -> None:
    package = Path(strata_pack.parsing.__file__).parent
    shutil.copytree(package, tmp_path / "strata_pack" / "parsing", ignore=shutil.ignore_patterns("__pycache__"))
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from strata_pack.parsing import parse;"
        f"print(len(parse({JOBS!r}, thinking=False).calls), [m for m in sys.modules if m == 'strata_pack.errors'])"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "[]"]


HOSTILE = {
    "openers": "<tool_call>",
    "openers and functions": "<tool_call><function=save>",
    "unclosed values": "<tool_call>\n<function=save>\n<parameter=path>\n",
    "values closed loosely": "<tool_call>\n<function=save>\n<parameter=path>\nx\n</function>\n</tool_call>\n",
    "bare values closed loosely": "<function=save>\n<parameter=path>\nx\n</function>\n</tool_call>\n",
    "prose behind functions": "<tool_call>\n<function=jobs>\n</function>\nprose\n",
    "calls without a function's end": "<tool_call>\n<function=save>\n<parameter=path>\nx\n</parameter>\n</tool_call>\n",
    "closers": "</parameter></function>",
    "calls behind a backtick": "`x``<tool_call><function=jobs></function></tool_call>",
    "openers behind a backtick": "```<tool_call>`",
    "braces": "<tool_call>{",
    "white space": "<tool_call>" + " \n" * 20,
    "newlines": "\n",
    "quotes": "> ",
    "list items": "- \n",
    "ends of the thinking": "</think>",
    "many parameters": "<parameter=a>1</parameter>",
    "many different parameters": "<parameter={0}>1</parameter>",
    "misspelt closers": "\n</param1>",
    "half tags in a value": "\n<param",
    "closers with words behind": "</parameter> x\n",
    "swapped closers": "\n</function>\n</parameter>",
    "doubled openers": "<parameter=path>\n",
    "words without end": "word ",
    "lines of openers": "<tool_call>\n",
    "objects": "{} ",
}


def seconds(text: str, **options: Any) -> float:
    """Return this thread's processor seconds for ``text`` in one delta and in deltas of 4.

    Without the garbage collector, which looks at all that the other tests have left.
    """
    gc.disable()
    start = time.thread_time()
    try:
        for size in (len(text), 4):
            parser = OutputParser(tools=TOOLS, **options)
            for at in range(0, len(text), size):
                parser.feed(text[at : at + size])
            parser.finish()
        return time.thread_time() - start
    finally:
        gc.enable()


VALUE = "<tool_call><function=save><parameter=path>\n"
LEADS = {
    "many parameters": "<tool_call><function=save>",
    "many different parameters": "<tool_call><function=other>",
    "misspelt closers": VALUE,
    "half tags in a value": VALUE,
    "closers with words behind": VALUE,
    "swapped closers": VALUE,
    "doubled openers": VALUE,
    "words without end": f"{VALUE}a</parameter>",
    "objects": "<tool_call>",
}
"""What stands before the text that is repeated."""


def repeated(unit: str, size: int) -> str:
    """Return ``unit`` again and again, numbered where it asks for it."""
    return "".join(unit.replace("{0}", f"p{number}") for number in range(size // len(unit)))


@pytest.mark.parametrize("name", HOSTILE)
def test_cost_grows_with_the_text_and_not_with_its_square(name: str) -> None:
    lead = LEADS.get(name, "`" if "backtick" in name else "")
    unit = HOSTILE[name]
    policy: list[dict[str, Any]] = [{"thinking": False, "stream_tools": True}, {"implicit_end": "strict"}]
    for options in policy:
        few, many = (seconds(lead + repeated(unit, size), **options) for size in (1_500, 18_000))
        assert many < 48 * few + 0.05, f"12 times the text took {many / few:.0f} times as long ({options})"


@pytest.mark.parametrize("closer", ["x</tool_call>", "x</function>"])
def test_text_behind_a_doubtful_end_is_looked_at_once(closer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    tail = HeldText.tail
    monkeypatch.setattr(HeldText, "tail", lambda held, count: looked.append(count) or tail(held, count))
    text = f"{VALUE}v\n</parameter>\n</tool_call>\n{closer * 200}"
    parse(text, thinking=False, tools=TOOLS)
    assert sum(looked) < 64 * 2 * 200 + len(text)
