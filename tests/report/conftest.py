"""One report that has everything a report can have."""

from __future__ import annotations

import pytest

from strata_pack.report import Chart, Check, Report, Table

HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&\x00\x1b[31m\ud800"
)


@pytest.fixture
def full_report() -> Report:
    return Report(
        title="smoke <of> a model",
        checks=(
            Check("template-loaded", "The template is the manifest's", "passed", "same text", 0.2),
            Check(
                "repair-reasoning",
                "A call in the thinking is closed",
                "failed",
                "the thinking is open before the call",
                1.25,
                where="packs/a model/model.gguf",
                prompt=f"<|im_start|>user\n{HOSTILE}",
                expected="<think>\nI need it.\n</think>\n\n<tool_call>\n",
                got="<think>\nI need it.\n\n<tool_call>\t\n",
                log=f"srv  update_slots: {HOSTILE}",
            ),
            Check(
                "prefix-cache",
                "Tokens read again",
                "passed",
                "less with the thinking echoed",
                2.0,
                table=Table(("turn", "echoed", "stripped"), (("1", 900, 900), ("2", 60, 1340.5))),
                chart=Chart("Read again", "turn", "tokens", ("1", "2"), {"echoed": (900, 60), "stripped": (900, 1340)}),
                data={"turns": [1, 2], "note": HOSTILE},
            ),
            Check("parallel", "Eight at once", "error", f"the server died: {HOSTILE}", 0.5),
            Check("mentions", "Ten mentions", "skipped", "needs a grammar"),
        ),
        facts={"model": "a <model>", "runtime": "embedded"},
        started="2026-11-29T21:00:00Z",
        seconds=5.5,
    )
