"""The shipped golden suite on every engine that runs without a server."""

from __future__ import annotations

import pytest

from strata_pack.chat.cases import GoldenCase, load_suite
from strata_pack.chat.engines import Engine, available_engines
from strata_pack.chat.golden import check
from strata_pack.chat.library import load_shipped

SHIPPED = load_shipped("qwen3.8-flash-next")
SUITE = load_suite(SHIPPED.golden_dir)


@pytest.mark.parametrize("engine", available_engines(), ids=lambda engine: engine.name)
@pytest.mark.parametrize("case", SUITE.cases, ids=lambda case: case.id)
def test_shipped_template_renders_every_golden_case(case: GoldenCase, engine: Engine) -> None:
    suite = type(SUITE)("one", (case,))
    report = check(SHIPPED.source, suite, [engine])
    assert report.results[0].status == ("known" if engine.name in case.differs_on else "passed"), report.to_dict()
