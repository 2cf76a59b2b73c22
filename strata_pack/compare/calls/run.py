"""Runs the tasks on a pack or a server and returns the share of right calls.

The pack's own template renders the prompts; replies are generated greedily, without a grammar and one at a time, so
that a second run gives the same numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_pack.chat.render.template import ChatTemplate, read_template
from strata_pack.compare.calls.score import CallScore, Share, score_reply
from strata_pack.compare.calls.tasks import CallTask, make_tasks, tools
from strata_pack.compare.full import model_file
from strata_pack.errors import BadInput
from strata_pack.llama.answers import GarbledAnswer, RequestRefused
from strata_pack.llama.client import LlamaClient
from strata_pack.llama.runtimes import Runtime
from strata_pack.llama.server import LlamaServer
from strata_pack.pack.layout import gguf_template
from strata_pack.parsing import OutputParser
from strata_pack.progress import Progress, Silent
from strata_pack.weights.gguf.file import GgufFile

LIMIT = 768
"""Maximum tokens of a reply: the longest expected call has about 150, the rest is for thinking."""
CONTEXT = 8192
SHORTEST = 256
"""Maximum tokens of a reply below which the calls of the tasks are cut off."""


@dataclass(frozen=True)
class CallsOptions:
    """Options of a run. ``limit``: maximum tokens of a reply; ``per_kind``: tasks of each kind."""

    seed: int = 0
    per_kind: int = 8
    limit: int = LIMIT
    template: Path | None = None
    runtime: Runtime | None = None
    threads: int | None = None


@dataclass(frozen=True)
class CallsResult:
    """All results of one model."""

    model: str
    seed: int
    scores: tuple[CallScore, ...]

    @property
    def total(self) -> Share:
        """The share of tasks with exactly the expected calls."""
        return self.share(self.scores)

    @property
    def by_kind(self) -> dict[str, Share]:
        kinds = dict.fromkeys(one.kind for one in self.scores)
        return {kind: self.share([one for one in self.scores if one.kind == kind]) for kind in kinds}

    @staticmethod
    def share(scores: Sequence[CallScore]) -> Share:
        return Share(sum(one.right for one in scores), len(scores))

    def count(self, verdict: str) -> int:
        """Return the number of tasks with ``verdict``."""
        return sum(one.verdict == verdict for one in self.scores)

    def to_dict(self) -> dict[str, Any]:
        verdicts = dict.fromkeys(one.verdict for one in self.scores)
        return {
            "model": self.model,
            "seed": self.seed,
            "total": self.total.to_dict(),
            "kinds": {kind: share.to_dict() for kind, share in self.by_kind.items()},
            "verdicts": {verdict: self.count(verdict) for verdict in verdicts},
            "stranded": sum(one.stranded for one in self.scores),
            "drifted": sum(one.drifted for one in self.scores),
            "tasks": [
                {"task": one.task, "verdict": one.verdict, "stranded": one.stranded, "drifted": one.drifted}
                for one in self.scores
            ],
        }


def ask_model(model: Path, options: CallsOptions, progress: Progress | None = None) -> CallsResult:
    """Serve a PACK or GGUF and run every task on it.

    Raises ``BadInput`` for a model without a chat template or with too small a context, ``EnvironmentFailure`` if the
    server does not start.
    """
    path = model_file(model)
    template = _template(path, options.template)
    with LlamaServer.start(path, runtime=options.runtime, context=CONTEXT, threads=options.threads) as server:
        return ask_server(server.client, template, str(model), options, progress, trained_context(path))


def check_model(model: Path, options: CallsOptions) -> None:
    """Raise as ``ask_model`` for what is known without a server: no GGUF, no chat template, one that fails."""
    path = model_file(model)
    trained_context(path)
    _prompts(_template(path, options.template), make_tasks(options.seed, options.per_kind), str(model))


def ask_url(url: str, template: Path, options: CallsOptions, progress: Progress | None = None) -> CallsResult:
    """Run every task on the llama.cpp server at ``url``; ``template`` renders the prompts."""
    client = LlamaClient(url)
    try:
        return ask_server(client, ChatTemplate(read_template(template)), url, options, progress)
    finally:
        client.close()


def ask_server(
    server: LlamaClient,
    template: ChatTemplate,
    name: str,
    options: CallsOptions,
    progress: Progress | None = None,
    trained: int | None = None,
) -> CallsResult:
    """Run every task on a server whose model is called ``name`` and was ``trained`` with a context of so many tokens.

    Raises ``BadInput`` before the first task if the template fails, or the longest prompt and a reply do not fit into
    the context.
    """
    tasks, offered, progress = make_tasks(options.seed, options.per_kind), tools(), progress or Silent()
    prompts = _prompts(template, tasks, name)
    if not _shows_tools(template, tasks[0], prompts[0]):
        progress.note(f"{name}: its chat template does not show the tools to the model, which can hardly call them")
    _check_context(server, max(prompts, key=len), name, options.limit, trained)
    task = progress.task(f"calls of {Path(name).name}", len(tasks), "tasks")
    scores = []
    for one, prompt in zip(tasks, prompts, strict=True):
        scores.append(_ask(server, prompt, one, offered, options))
        task.advance(1)
    task.done()
    return CallsResult(name, options.seed, tuple(scores))


def _prompts(template: ChatTemplate, tasks: Sequence[CallTask], name: str) -> list[str]:
    """Return the prompt of every task; ``BadInput`` names the model whose template fails."""
    try:
        return [template.render(one.messages, tools(), add_generation_prompt=True) for one in tasks]
    except BadInput as error:
        raise BadInput(str(error), where=name, remedy="name another template with --template") from error


def _shows_tools(template: ChatTemplate, task: CallTask, prompt: str) -> bool:
    try:
        return template.render(task.messages, None, add_generation_prompt=True) != prompt
    except BadInput:
        return True


def _check_context(server: LlamaClient, longest: str, name: str, limit: int, trained: int | None) -> None:
    with contextlib.suppress(RequestRefused, GarbledAnswer):  # a server that does not tell its context refuses later
        known = [context for context in (server.props().context, trained) if context]
        tokens = len(server.tokenize(longest, add_special=True))
        if known and tokens + limit > min(known):
            room = min(known) - tokens
            raise BadInput(
                f"its context is {min(known):,} tokens; the longest prompt has {tokens:,} and a reply up to {limit:,}",
                where=name,
                remedy=f"use --limit {room}" if room >= SHORTEST else "take a model with a longer context",
            )


def _ask(
    server: LlamaClient, prompt: str, task: CallTask, offered: list[dict[str, Any]], options: CallsOptions
) -> CallScore:
    answer = server.completion(
        prompt,
        n_predict=options.limit,
        temperature=0.0,
        seed=options.seed,
        cache_prompt=False,
        stop=["<|im_end|>", "<|endoftext|>"],
    )
    parser = OutputParser.for_prompt(prompt, tools=offered, call_format="auto")
    reason = "length" if answer.stop_type == "limit" else "stop"
    return score_reply(task, answer.text, offered, parser, reason)


def trained_context(model: Path) -> int | None:
    """Return the tokens of context that a GGUF's model was trained with, ``None`` if its header does not say."""
    with GgufFile.open(model) as gguf:
        values = {key: entry.value for key, entry in gguf.metadata.items() if not key.startswith("tokenizer.")}
    found = values.get(f"{values.get('general.architecture')}.context_length")
    return found if isinstance(found, int) and found > 0 else None


def _template(model: Path, named: Path | None) -> ChatTemplate:
    if named is not None:
        return ChatTemplate(read_template(named))
    text = gguf_template(model)
    if text is None:
        raise BadInput("has no chat template", where=model, remedy="name one with --template")
    return ChatTemplate(text)
