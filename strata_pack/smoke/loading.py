"""Runs loading scenarios: the template, its golden cases, the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strata_pack.chat.engines.server import LlamaServerEngine
from strata_pack.chat.golden import check as golden
from strata_pack.chat.golden.check import CaseResult
from strata_pack.chat.library import list_templates
from strata_pack.chat.render.template import ChatTemplate
from strata_pack.files import sha256_text
from strata_pack.llama.client import LlamaClient
from strata_pack.report import Check, Table
from strata_pack.smoke.builds import build_name, difference_of_build, is_recorded
from strata_pack.smoke.context import SmokeContext
from strata_pack.smoke.header import TAGS
from strata_pack.smoke.scenario import Scenario

TURN_MARKERS = ("<|im_start|>", "<|im_end|>")


def template_loaded(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Compare the template that the server reports with the intended one, from both places it can come from."""
    meant = context.template
    place = "gguf" if context.target.template_file is None else "given"
    yield _same_template(f"{scenario.id}/{place}", scenario, meant, context, context.client.props().chat_template)
    with context.small_server(meant) as server:
        props = server.client.props()
        yield _same_template(f"{scenario.id}/file", scenario, meant, context, props.chat_template)
    shipped = next((one for one in list_templates() if one.sha256 == sha256_text(meant)), None)
    if shipped is not None and shipped.llama_server_caps:
        wrong = {
            name: (value, props.template_caps.get(name))
            for name, value in shipped.llama_server_caps.items()
            if props.template_caps.get(name) != value
        }
        named = "; ".join(f"{name} should be {value}, is {got}" for name, (value, got) in wrong.items())
        known = bool(wrong) and not is_recorded(context.runtime)
        yield Check(
            f"{scenario.id}/capabilities",
            "the server derives the expected capabilities from the template",
            "failed" if wrong and not known else "passed",
            f"a known difference of {build_name(context.runtime, props)}: {named}"
            if known
            else named or f"{len(shipped.llama_server_caps)} flags as they should be",
            data={"capabilities": dict(props.template_caps)},
        )


def _same_template(id_: str, scenario: Scenario, meant: str, context: SmokeContext, got: str) -> Check:
    """Check that the server has the intended template. It drops the last line end, as every Jinja engine does."""
    pinned = context.target.pinned_sha256 or sha256_text(meant)
    loaded = got if sha256_text(got) == pinned else f"{got}\n"
    digest = sha256_text(loaded)
    right = digest == pinned
    named = "the manifest's" if context.target.pinned_sha256 else "the intended one"
    return Check(
        id_,
        scenario.proves,
        "passed" if right else "failed",
        f"the server's template is {'' if right else 'not '}{named} (sha256 {digest[:16]}, {len(loaded):,} characters)",
        expected=None if right else meant,
        got=None if right else got,
        data={"sha256": digest, "expected_sha256": pinned},
    )


def golden_cases(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Render the suite through ``/apply-template``; one check for all, and one for each case that fails.

    The server itself refuses some requests before the template sees them. If the template would refuse too, that is a
    listed difference as well.
    """
    suite = context.target.suite
    assert suite is not None  # the scenario requires it
    engine = LlamaServerEngine(context.own_server())
    report = golden.check_golden(context.template, suite, [engine])
    counts = report.counts(engine.name)
    refused = [result for result in report.failures if result.case.error is not None and result.got_error is not None]
    by_build = {} if is_recorded(context.runtime) else _by_build(context, report.failures)
    wrong = [result for result in report.failures if result not in refused and result.case.id not in by_build]
    named = [(result.case.id, result.reason) for result in report.results if result.status == "known"]
    named += [(result.case.id, f"both refuse; the server says: {result.got_error}") for result in refused]
    named += by_build.items()
    yield Check(
        scenario.id,
        scenario.proves,
        "failed" if wrong else "passed",
        f"{counts['passed']} of {len(suite.cases)} identical to jinja2, {len(named)} differ as listed, "
        f"{len(wrong)} differ",
        table=Table(("known difference", "reason"), tuple(named)) if named else None,
        data={"suite": suite.name, "suite_sha256": suite.sha256, "identical": counts["passed"], "named": len(named)},
    )
    for result in wrong:
        yield Check(
            f"{scenario.id}/{result.case.id}",
            "this conversation renders as jinja2 renders it",
            "failed",
            "the prompt differs" if result.got is not None else f"refused: {result.got_error}",
            expected=result.case.expected if result.case.error is None else result.case.error,
            got=result.got if result.got is not None else result.got_error,
        )


def _by_build(context: SmokeContext, failures: Sequence[CaseResult]) -> dict[str, str]:
    """Return the cases whose difference a known behaviour of this build explains, with the reason."""
    props = context.client.props()
    template = ChatTemplate(context.template)
    found = {}
    for result in failures:
        why = difference_of_build(result, template, props.template_caps)
        if why is not None:
            found[result.case.id] = f"{build_name(context.runtime, props)}: {why}"
    return found


def special_tokens(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Look up the format's tags in the vocabulary.

    The turn markers must be in it, and must not result from text that is not parsed for special tokens. Tags that the
    vocabulary lacks are reported as skipped: a model without them can only spell them.
    """
    client = context.client
    used = [text for text in TURN_MARKERS if text in context.template]
    yield _single(client, f"{scenario.id}/turns", scenario, used, missing="failed")
    tags = [text for text in TAGS if text in context.template]
    if tags:
        yield _single(client, f"{scenario.id}/tags", scenario, tags, missing="skipped")
    forged = [text for text in used if len(client.tokenize(text, parse_special=False)) == 1]
    yield Check(
        f"{scenario.id}/user-text",
        scenario.proves,
        "failed" if forged else "passed",
        f"{', '.join(forged)}: one token even where special tokens are not parsed"
        if forged
        else "not parsed for special tokens, the markers are plain text (a llama.cpp chat endpoint parses the whole "
        "prompt, user text included)",
        data={"single_without_special_parsing": forged},
    )


def _single(client: LlamaClient, id_: str, scenario: Scenario, texts: list[str], *, missing: str) -> Check:
    tokens = {text: client.tokenize(text) for text in texts}
    split = [text for text, ids in tokens.items() if len(ids) != 1]
    rows = tuple((text, len(ids), " ".join(map(str, ids[:12]))) for text, ids in tokens.items())
    return Check(
        id_,
        scenario.proves,
        "passed" if not split else "failed" if missing == "failed" else "skipped",
        f"{len(texts)} single tokens"
        if not split
        else f"not single tokens of this vocabulary: {', '.join(split)}; the model can only spell them",
        table=Table(("text", "tokens", "ids"), rows),
        data={"tokens": tokens},
    )
