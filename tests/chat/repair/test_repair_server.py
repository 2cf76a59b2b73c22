"""The repair on llama.cpp's own engine, as a real server runs it: one server a template, before and after."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_pack.chat.engines.engines import Jinja2Engine
from strata_pack.chat.repair import repair
from strata_pack.chat.repair.engines import RestartingServer, proof_engines
from strata_pack.chat.repair.repair import RepairRefused, RepairResult, repair_template
from strata_pack.errors import WrongUse

STOCK = Path(__file__).parents[2] / "data/chat/stock"

pytestmark = pytest.mark.xdist_group("repair-server")


def repaired_on_a_server(name: str) -> RepairResult:
    with proof_engines(["jinja2", "llama.cpp"]) as engines:
        return repair_template((STOCK / f"{name}.jinja").read_text(encoding="utf-8"), engines)


def test_a_repair_is_proved_on_a_real_server_and_keeps_its_capability_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = repair.generate("json")[::6]
    monkeypatch.setattr(repair, "generate", lambda _form: sample)
    result = repaired_on_a_server("qwen3_like")
    proof = result.proof.engines[1]
    assert (proof.engine, result.changed) == ("llama.cpp", True)
    assert (proof.unchanged + proof.closed + proof.refused) == len(sample)
    assert min(proof.unchanged, proof.closed) > 15


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_like", "coder_like", "qwen35_like", "qwen38_like"])
def test_each_shape_is_proved_on_a_real_server(name: str) -> None:
    assert repaired_on_a_server(name).proof.engines[1].closed > 150


class Forgetful(RestartingServer):
    """A server engine that reports one flag otherwise for the repaired template, as if the prelude confused it."""

    def capabilities(self, source: str) -> dict[str, object]:
        return {**super().capabilities(source), "supports_tools": "strata-pack" not in source}


def test_a_changed_capability_flag_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # One conversation a kind is enough here: the flags are looked at when the proof is done.
    whole = repair.generate("json")
    short = [next(one for one in whole if one.stranded), next(one for one in whole if not one.stranded)]
    monkeypatch.setattr(repair, "generate", lambda _form: short)
    server = Forgetful()
    try:
        with pytest.raises(RepairRefused, match="supports_tools"):
            repair_template((STOCK / "qwen3_like.jinja").read_text(encoding="utf-8"), [Jinja2Engine(), server])
    finally:
        server.close()


def test_an_unknown_engine_is_wrong_use() -> None:
    with pytest.raises(WrongUse, match="no engine is called 'jinja3'"), proof_engines(["jinja3"]):
        pass
