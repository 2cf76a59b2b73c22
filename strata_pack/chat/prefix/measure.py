"""Measures, turn by turn, how much of a conversation a server with a prefix cache must process again, and why.

After a turn the server's cache holds the prompt and what the model generated. The next prompt is cheap only if it
starts with exactly that text. Templates that drop old thinking, and clients that do not send it back, break the prefix:
the server then processes everything after the break again, in every turn of every session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from strata_pack.chat.prefix.cause import SessionTurn, find_cause
from strata_pack.chat.prefix.report import MODES, Break, Mode, ModeName, PrefixReport, Run, TurnStep
from strata_pack.chat.prefix.session import Session
from strata_pack.chat.render.template import ChatTemplate, in_thinking
from strata_pack.errors import BadInput
from strata_pack.parsing.dialect import THINK_CLOSE
from strata_pack.prefixes import common_length

Tokenizer = Callable[[str], Sequence[int]]

NEW_MARK = "\u27e8new\u27e9"
LONGEST_TAG = 24


def check_prefix(
    template: ChatTemplate,
    session: Session,
    modes: Sequence[ModeName] = ("kept", "dropped", "stripped"),
    tokenizer: Tokenizer | None = None,
) -> PrefixReport:
    """Run ``session`` with ``template`` in each of ``modes`` and return what a prefix cache must process again.

    Raises ``BadInput`` if no assistant turn of the session is followed by another message, and ``TemplateError`` if the
    template refuses it.
    """
    if not any(_next_prompts(session.messages)):
        raise BadInput("has no assistant turn that another message follows", where=session.name)
    session = _as_the_template_thinks(template, session)
    runs = tuple(Run(MODES[name], tuple(_steps(template, session, MODES[name], tokenizer))) for name in modes)
    kept, dropped = (
        template.render(
            session.messages,
            session.tools,
            **{**session.variables, "add_generation_prompt": True, "preserve_thinking": value},
        )
        for value in (True, False)
    )
    return PrefixReport(session, template.sha256, kept != dropped, runs)


def _as_the_template_thinks(template: ChatTemplate, session: Session) -> Session:
    """Return ``session`` as a model could have generated it with this template's prompts.

    If the template closes the thinking by default, thinking is switched on; if that is impossible, thinking is removed.
    """
    if "enable_thinking" in session.variables or not _closes_thinking(template, session, {}):
        return session
    if not _closes_thinking(template, session, {"enable_thinking": True}):
        return replace(session, variables={**session.variables, "enable_thinking": True})
    if any(isinstance(message.get("generated"), str) for message in session.messages):
        return session
    return replace(session, messages=[_stripped(message) for message in session.messages])


def _closes_thinking(template: ChatTemplate, session: Session, variables: Mapping[str, Any]) -> bool:
    """Return whether the generation prompt ends with a closed think block."""
    given = {**session.variables, **variables}
    first = next(index for index, message in enumerate(session.messages) if message.get("role") == "assistant")
    with_prompt, without = (
        template.render(session.messages[:first], session.tools, **{**given, "add_generation_prompt": value})
        for value in (True, False)
    )
    begun = with_prompt[common_length(with_prompt, without) :]
    return begun.rstrip().endswith(THINK_CLOSE)


def _next_prompts(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
    """Yield, for each assistant turn, its index and the number of messages in the next prompt."""
    turns = [index for index, message in enumerate(messages) if message.get("role") == "assistant"]
    for turn, end in zip(turns, (*turns[1:], len(messages)), strict=False):
        if end > turn + 1:
            yield turn, end


def _steps(template: ChatTemplate, session: Session, mode: Mode, tokenizer: Tokenizer | None) -> Iterator[TurnStep]:
    full = session.messages
    sent = [_stripped(message) for message in full] if mode.strips else full
    variables = {**session.variables, **mode.variables}
    ending = _end_of_turn(template, variables)

    def render(messages: Sequence[Mapping[str, Any]], *, generate: bool) -> str:
        return template.render(messages, session.tools, **{**variables, "add_generation_prompt": generate})

    turns: list[SessionTurn] = []
    thinking: dict[int, str] = {}
    for index, end in _next_prompts(full):
        prompt, following = render(sent[:index], generate=True), render(sent[:end], generate=True)
        generated = _generated(full[index], prompt, render([*sent[:index], full[index]], generate=False), ending)
        begun = common_length(prompt, render(sent[:index], generate=False))
        turns.append(SessionTurn(len(turns) + 1, sent[index], begun, len(prompt), _query_follows(full, index, end)))
        thinking[len(turns)] = _thought(full[index])
        cached = prompt + generated
        common = common_length(cached, following)
        known = _end_of_known(sent, index, end, generated, following, render)
        broken = None
        if common < len(cached):
            cause, turn = find_cause(cached, common, turns, thinking)
            at = tag_start(cached, common)
            broken = Break(at, cached[:at], cached[at:], following[at:], turn, cause)
        yield TurnStep(
            turn=len(turns),
            title=_title(full[index]),
            cached=cached,
            following=following,
            fresh=len(following) - max(known, common),
            again=max(0, known - common),
            broken=broken,
            **_in_tokens(tokenizer, following, common, known),
        )


def tag_start(text: str, at: int) -> int:
    """Return ``at``, or the start of the tag around it: two tags with a common beginning are reported as different
    tags."""
    opened = text.rfind("<", max(0, at - LONGEST_TAG), at)
    return opened if opened > text.rfind(">", 0, at) and "\n" not in text[opened:at] else at


def _stripped(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the message as a client without thinking sends it back."""
    return {key: value for key, value in message.items() if key not in ("reasoning_content", "generated")}


def _end_of_turn(template: ChatTemplate, variables: Mapping[str, Any]) -> str:
    """Return the text that the template writes after a turn; the cache has the model's end token instead."""
    mark = "the end of this turn"
    messages = [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": mark}]
    prompt = template.render(messages, **{**variables, "add_generation_prompt": False})
    return prompt[prompt.rfind(mark) + len(mark) :]


def _thought(message: Mapping[str, Any]) -> str:
    reasoning = message.get("reasoning_content")
    return reasoning.strip() if isinstance(reasoning, str) else ""


def _generated(message: Mapping[str, Any], prompt: str, itself: str, ending: str) -> str:
    """Return the text that the model generated for ``message``: the recorded text, or else the template's own
    rendering of the turn as the newest one, which is the form the model was trained on."""
    recorded = message.get("generated")
    if isinstance(recorded, str):
        return recorded
    start = common_length(prompt, itself)
    if start == len(prompt):
        return itself[start:].removesuffix(ending)
    # The turn does not start with the generation prompt: the template opens a thinking that it never writes.
    written = itself[tag_start(itself, start) :].removesuffix(ending).removeprefix(THINK_CLOSE)
    thought = _thought(message)
    return f"{thought}\n{THINK_CLOSE}\n\n{written}" if thought and in_thinking(prompt) else written


def _end_of_known(
    sent: Sequence[Mapping[str, Any]],
    index: int,
    end: int,
    generated: str,
    following: str,
    render: Callable[..., str],
) -> int:
    """Return the position in the next prompt at which the turn ``index`` ends, which is the end of the cached text.

    It is the last occurrence of the turn's last line before the first new message, which is located by rendering it
    with a mark before its text.
    """
    new = sent[index + 1]
    text = new.get("content")
    limit = len(following)
    if isinstance(text, str):
        marked = [*sent[: index + 1], {**new, "content": NEW_MARK + text}, *sent[index + 2 : end]]
        limit = max(render(marked, generate=True).rfind(NEW_MARK), 0)
    last_line = generated.rstrip("\n").rpartition("\n")[2]
    place = following.rfind(last_line, 0, limit) if last_line else -1
    return place + len(last_line) if place >= 0 else limit


def _query_follows(messages: Sequence[Mapping[str, Any]], index: int, end: int) -> bool:
    """Return whether a user message comes between the turn and the next prompt."""
    return any(message.get("role") == "user" for message in messages[index + 1 : end])


def _title(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls") or []
    names = [call.get("function", call).get("name", "?") for call in calls if isinstance(call, Mapping)]
    return ", ".join(str(name) for name in names) if names else "answers"


def _in_tokens(tokenizer: Tokenizer | None, following: str, common: int, known: int) -> dict[str, int]:
    """Return the lengths of a step in tokens; the prompt is split at the same characters."""
    if tokenizer is None:
        return {}
    whole, seen, kept = (len(tokenizer(following[:end])) for end in (len(following), max(known, common), common))
    return {"prompt_tokens": whole, "fresh_tokens": whole - seen, "again_tokens": seen - kept}
