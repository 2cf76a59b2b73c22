"""Completes values in the shell: presets, types, templates, rules, engines, scenarios, runtimes, programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def _presets() -> Iterable[str]:
    from strata_pack.weights.quantize.presets import PRESETS

    return PRESETS


def _templates() -> Iterable[str]:
    from strata_pack.chat.library import list_templates

    return [shipped.id for shipped in list_templates()]


def _engines() -> Iterable[str]:
    from strata_pack.chat.engines.engines import ENGINE_NAMES

    return (*ENGINE_NAMES, "all")


def _scenarios() -> Iterable[str]:
    from strata_pack.smoke.scenario import scenarios

    return [scenario.id for scenario in scenarios()]


def _runtimes() -> Iterable[str]:
    from strata_pack.llama.runtimes import AUTO, list_runtimes

    return [AUTO, *(runtime.name for runtime in list_runtimes())]


def _outtypes() -> Iterable[str]:
    from strata_pack.weights.convert.outtypes import OUTTYPES

    return ("auto", *OUTTYPES)


def _types() -> Iterable[str]:
    from strata_pack.llama.ggml import QUANTIZABLE

    return [type.name for type in sorted(QUANTIZABLE)]


def _programs() -> Iterable[str]:
    from strata_pack.publish.exports import PROGRAMS

    return PROGRAMS


def _rules() -> Iterable[str]:
    from strata_pack.chat.lint.rules import RULES

    return [rule.id for rule in RULES]


def _cache_entries() -> Iterable[str]:
    from strata_pack.cache import cache_entries

    return [entry.name for entry in cache_entries()]


def _completion(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.lower().startswith(incomplete.lower())]

    return complete


presets = _completion(_presets)
templates = _completion(_templates)
template_or_auto = _completion(lambda: ["auto", "keep", *_templates()])
engines = _completion(_engines)
scenarios = _completion(_scenarios)
runtimes = _completion(_runtimes)
outtypes = _completion(_outtypes)
types = _completion(_types)
programs = _completion(_programs)
rules = _completion(_rules)
cache_entries = _completion(_cache_entries)
