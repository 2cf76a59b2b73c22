"""Adds history repair to a stock template and proves that nothing else changed.

The repair is a prelude: Jinja code before the template that moves stranded tool calls out of the thinking in
``messages`` before the template reads them. A repaired template is returned only if ``proof`` proves it on every
engine.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict

from strata_pack.chat.engines.engines import Engine, available_engines
from strata_pack.chat.render.template import ChatTemplate, TemplateError, TemplateRefused
from strata_pack.chat.repair.engines import RestartingServer
from strata_pack.chat.repair.prelude import prelude, without_prelude
from strata_pack.chat.repair.proof import (
    Baseline,
    Difference,
    EngineProof,
    EngineProofDict,
    baseline,
    compare_renders,
    moved_mentions,
    prove_repair,
)
from strata_pack.chat.repair.rules import CallForm
from strata_pack.chat.repair.suite import TOOLS, generate
from strata_pack.errors import BadInput
from strata_pack.files import sha256_text

How = Literal["prelude", "not needed"]

PROBE_NAME = "probe_the_call_form"


class RepairProofDict(TypedDict):
    """A ``RepairProof`` as JSON."""

    form: CallForm | None
    engines: list[EngineProofDict]


class RepairResultDict(TypedDict):
    """A ``RepairResult`` as JSON, with the hash of the text in place of the text."""

    changed: bool
    how: How
    why: str
    notes: list[str]
    sha256: str
    proof: RepairProofDict


@dataclass(frozen=True)
class RepairProof:
    """The proof of a repair: the ``form`` of the calls, None if the template writes none; one ``EngineProof`` per
    engine."""

    form: CallForm | None
    engines: tuple[EngineProof, ...]

    def to_dict(self) -> RepairProofDict:
        return {"form": self.form, "engines": [engine.to_dict() for engine in self.engines]}


@dataclass(frozen=True)
class RepairResult:
    """``text`` is the template to use; ``changed`` says whether it differs from the given one.

    ``how``: "prelude" (the repair was prepended), or "not needed", with the reason in ``why``. ``notes`` describe
    behaviour of the template that the repair does not change.
    """

    text: str
    changed: bool
    how: How
    why: str
    proof: RepairProof
    notes: tuple[str, ...] = ()

    def to_dict(self) -> RepairResultDict:
        return {
            "changed": self.changed,
            "how": self.how,
            "why": self.why,
            "notes": list(self.notes),
            "sha256": sha256_text(self.text),
            "proof": self.proof.to_dict(),
        }


class RepairRefused(BadInput):
    """The template cannot be repaired with a proof. ``missing`` names what it lacks; ``difference`` is the first
    conversation that is not rendered as required, if the proof failed."""

    def __init__(self, missing: str, difference: Difference | None = None) -> None:
        self.missing = missing
        self.difference = difference
        super().__init__(
            missing if difference is None else f"{missing}: {difference}",
            where="chat template",
            remedy="keep the template as it is, or write a repaired one by hand",
        )


def repair_template(source: str, engines: Sequence[Engine] | None = None) -> RepairResult:
    """Return ``source`` with history repair added, proved on ``engines`` (all that run here without a server).

    A template that already closes every stranded call, or writes no tool calls, is returned unchanged: repairing is
    idempotent. Raises ``TemplateError`` if it does not compile and ``RepairRefused`` if its calls have an unknown
    format or the proof fails.
    """
    ChatTemplate(source)
    chosen = list(engines) if engines is not None else available_engines()
    if not chosen:
        raise ValueError("a proof needs at least one engine")
    form = call_form(source, chosen[0])
    if form is None:
        return RepairResult(source, False, "not needed", "it writes no tool calls", RepairProof(None, ()))
    suite = generate(form)
    bases = [baseline(source, engine, suite) for engine in chosen]
    notes = tuple(itertools.islice(filter(None, map(moved_mentions, bases)), 1))
    already = _proof(form, [compare_renders(base, base.as_is) for base in bases])
    if isinstance(already, RepairProof):
        return RepairResult(source, False, "not needed", "it closes every stranded call already", already, notes)
    outdated = None if source.startswith(prelude(form)) else without_prelude(source)
    if outdated is not None:
        renewed = repair_template(outdated, chosen)
        return replace(renewed, changed=True, why=f"{renewed.why}; an earlier version of the repair is replaced")
    text = prelude(form) + source
    able = [base for base in bases if _runs(base)]
    proof = _proof(form, [_prove_enough(base, text) for base in able or bases])
    if isinstance(proof, Difference):
        raise RepairRefused("; ".join(["the repair cannot be proved", *notes]), proof)
    unable = tuple(
        f"{base.engine.name} renders none of the conversations, so nothing is proved there"
        for base in bases
        if base not in able
    )
    for base in able:
        _keeps_capabilities(base.engine, source, text)
    return RepairResult(text, True, "prelude", "stranded calls are moved out of the thinking", proof, (*notes, *unable))


def _runs(base: Baseline) -> bool:
    """Return whether the engine can run the template; a refusal by the template counts as a run."""
    return any(kind != "failed" for kind, _ in base.as_is)


def _prove_enough(base: Baseline, text: str) -> EngineProof | Difference:
    proof = prove_repair(base, text)
    if isinstance(proof, EngineProof) and not (proof.unchanged and proof.closed):
        kind = "without" if proof.closed else "with"
        raise RepairRefused(f"{base.engine.name} renders no conversation {kind} a stranded call, so nothing is proved")
    return proof


def _keeps_capabilities(engine: Engine, source: str, text: str) -> None:
    if isinstance(engine, RestartingServer):
        before, after = engine.capabilities(source), engine.capabilities(text)
        changed = sorted(flag for flag in {*before, *after} if before.get(flag) != after.get(flag))
        if changed:
            raise RepairRefused(f"the repair changes the capabilities that llama-server detects: {', '.join(changed)}")


def _proof(form: CallForm, results: Sequence[EngineProof | Difference]) -> RepairProof | Difference:
    for result in results:
        if isinstance(result, Difference):
            return result
    return RepairProof(form, tuple(result for result in results if isinstance(result, EngineProof)))


def call_form(source: str, engine: Engine) -> CallForm | None:
    """Return the format in which the template writes a tool call of the history, ``None`` if it writes no calls.

    Raises ``RepairRefused`` for any other format than ``<tool_call>`` alone on a line, followed by ``<function=`` or
    ``{``, and for a template that renders no conversation with a call.
    """
    prompt = _probe(source, engine)
    name = prompt.find(PROBE_NAME)
    if name < 0:
        return None
    head = prompt[:name]
    line = head.rpartition("\n")[2]
    if head.endswith("<tool_call>\n<function="):
        return "xml"
    if line.startswith("{") and head.endswith(f"<tool_call>\n{line}"):
        return "json"
    shown = head[-32:] + "NAME"
    raise RepairRefused(
        "it lacks calls of a known form (<tool_call>, then <function= or { on the next line); "
        f"its own look like {shown!r}"
    )


def _probe(source: str, engine: Engine) -> str:
    """Return a prompt with one tool call in the history. Templates differ in the input that they accept: arguments
    as an object or as JSON text, with or without a result, with or without declared tools; the first form that
    renders is used."""
    causes = []
    for arguments, result, tools in itertools.product(
        ({"path": "a.c"}, '{"path": "a.c"}'), (True, False), (True, False)
    ):
        call = {"type": "function", "id": "call12345", "function": {"name": PROBE_NAME, "arguments": arguments}}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "Please look."},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "seen", "tool_call_id": "call12345"},
            {"role": "assistant", "content": "All is well."},
            {"role": "user", "content": "Thank you."},
        ]
        inputs = {"messages": messages if result else [*messages[:2], messages[-1]], "add_generation_prompt": True}
        try:
            return engine.render(source, {**inputs, "tools": TOOLS} if tools else inputs)
        except TemplateRefused as refused:
            causes.append(refused.message)
        except TemplateError as error:
            causes.append(error.cause)
    raise RepairRefused(f"it renders no conversation with a tool call ({causes[0]})")


def diff(stock: str, repaired: str) -> str:
    """Return the unified diff of the two templates."""
    lines = difflib.unified_diff(
        stock.splitlines(keepends=True), repaired.splitlines(keepends=True), "stock", "repaired", n=2
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
