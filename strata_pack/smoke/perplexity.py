"""Runs scenarios on faults that a grammar would hide: whether the model predicts text, and how a prompt begins.

Every token of a short plain text is scored with the probability that the model gave it before any bias or grammar.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from strata_pack.chat.render.template import ChatTemplate, TemplateError
from strata_pack.llama.answers import GarbledAnswer, RequestRefused
from strata_pack.llama.client import LlamaClient
from strata_pack.report import Check, Status
from strata_pack.smoke.context import SmokeContext
from strata_pack.smoke.data_files import read_text
from strata_pack.smoke.generation import BIAS, ONE_SLOT
from strata_pack.smoke.header import MARK, Metadata, open_template, read_header, token_text
from strata_pack.smoke.scenario import Impossible, Scenario

GIVEN = 24
"""Number of tokens given as context; the following ones are scored."""

SCORED = 48

TOY = 1_000
"""Smallest vocabulary that is checked: test models have fewer tokens, real models have more."""

FAR_BELOW = 0.6
"""The limit of the perplexity is the vocabulary's size to this power: 652 for 49,152 tokens, 1,278 for 151,936. A
working model has a perplexity below 100 on plain text, one with random weights about the vocabulary's size."""


def perplexity(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Score the text; fail on non-finite logits and on a perplexity near that of guessing."""
    assert context.target.model is not None
    vocabulary = read_header(context.target.model).get("tokenizer.ggml.tokens")
    size = len(vocabulary) if isinstance(vocabulary, list) else 0
    tokens = context.client.tokenize(read_text("plain.txt"), add_special=True, parse_special=False)[: GIVEN + SCORED]
    if size < TOY:
        raise Impossible(f"a vocabulary of {size} tokens is that of a test model, which need not predict plain text")
    if len(tokens) <= GIVEN:
        raise Impossible("the vocabulary makes too few tokens of a plain text")
    surprise = []
    for place in range(GIVEN, len(tokens)):
        found = log_probability(context.client, tokens[:place], tokens[place])
        if found is None or not math.isfinite(found):
            yield Check(
                scenario.id,
                scenario.proves,
                "failed",
                f"the model computes logits that are NaN or infinite (token {place + 1} of a plain text)",
            )
            return
        surprise.append(-found)
    value, limit = math.exp(min(sum(surprise) / len(surprise), 700.0)), size**FAR_BELOW
    status: Status = "passed" if value < limit else "failed"
    yield Check(
        scenario.id,
        scenario.proves,
        status,
        f"perplexity {value:,.1f} on {len(surprise)} tokens of plain text; guessing has {size:,}; {limit:,.0f} is the "
        "limit",
        data={"perplexity": value, "limit": limit, "vocabulary": size},
    )


def log_probability(client: LlamaClient, before: list[int], token: int) -> float | None:
    """Return the log probability of ``token`` after ``before``, None for NaN.

    A bias forces the token to be drawn; the server returns its probability before the bias. Raises ``Impossible`` for a
    server that returns none.
    """
    try:
        answer = client.completion(
            before,
            n_predict=1,
            n_probs=1,
            temperature=0.0,
            cache_prompt=True,
            logit_bias=[[token, BIAS * 1e4]],
            **ONE_SLOT,
        )
    except RequestRefused as refused:
        if refused.status == 500:
            return None
        raise
    entries = answer.raw.get("completion_probabilities")
    if not isinstance(entries, list) or not entries or not isinstance(entries[0], dict):
        raise Impossible("this build of the server tells no probabilities")
    found = entries[0]
    if found.get("id") != token:
        return None
    value = found.get("logprob")
    if value is not None and not isinstance(value, (int, float)):
        raise GarbledAnswer("a probability in the server's answer is not a number", where=client.url)
    return value


def prompt_start(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Compare the first and last tokens of a prompt on the server with those that the template itself writes.

    The server adds the tokens that the GGUF asks for (``add_bos_token``) to the prompt of a chat.
    """
    assert context.target.model is not None
    header = read_header(context.target.model)
    messages = [{"role": "user", "content": "Hello."}]
    try:
        written = open_template(context.target, header).render(messages, add_generation_prompt=True)
    except TemplateError as error:
        raise Impossible(f"the template does not render one question ({error})") from error
    meant = context.client.tokenize(written)
    sent = context.client.tokenize(context.client.apply_template(messages), add_special=True)
    wrong = list(_bos_of_template(context, header, messages))
    bos, eos = (header.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos"))
    text = token_text(header, "bos_token_id")
    here, there = (_leading(tokens, bos) for tokens in (sent, meant))
    if here > there:
        wrong.append(
            f"a prompt begins with the BOS token {text} {here} times, in the template {there} times: "
            "tokenizer.ggml.add_bos_token is wrong"
        )
    elif here > 1:
        wrong.append(f"a prompt begins with the BOS token {text} {here} times: the template writes it more than once")
    elif here < there:
        wrong.append(f"the template writes the BOS token {text} {there} times, a prompt begins with {here}")
    if sent and meant and sent[-1] == eos != meant[-1]:
        wrong.append("a prompt ends in the end-of-text token: tokenizer.ggml.add_eos_token is wrong")
    yield Check(
        scenario.id,
        scenario.proves,
        "failed" if wrong else "passed",
        "; ".join(wrong) or "the tokens that a prompt begins with are those of the template",
        data={"server": sent[:4], "template": meant[:4]},
    )


def _bos_of_template(
    context: SmokeContext, header: Metadata, messages: Sequence[Mapping[str, Any]]
) -> Iterator[str]:  # fmt: skip
    """Yield what is wrong with the way in which the template itself writes a BOS.

    A server whose tokenizer adds one hands the template an empty ``bos_token``, or removes it from the prompt's
    beginning; only the latter works for a BOS that is written as plain text.
    """
    named = token_text(header, "bos_token_id")
    if named is None and MARK in _rendered(context.template, messages, MARK):
        yield "the template writes bos_token, but the GGUF names none (tokenizer.ggml.bos_token_id)"
    if named is None or not _rendered(context.template, messages, "").startswith(named):
        return
    if context.client.tokenize("", add_special=True)[:1] == [header["tokenizer.ggml.bos_token_id"]]:
        yield (
            f"the template writes the BOS token as the text {named}, and the tokenizer adds one too: some servers "
            "begin a prompt with two (write {{ bos_token }}, or set tokenizer.ggml.add_bos_token to false)"
        )


def _rendered(template: str, messages: Sequence[Mapping[str, Any]], bos: str) -> str:
    return ChatTemplate(template, bos_token=bos).render(messages, add_generation_prompt=True)


def _leading(tokens: list[int], token: object) -> int:
    count = 0
    while count < len(tokens) and tokens[count] == token:
        count += 1
    return count
