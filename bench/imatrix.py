"""What collecting an importance matrix costs over plain evaluation: ``python bench/imatrix.py MODEL.gguf``.

Both evaluate the same chunks of the shipped calibration text through the embedded llama.cpp, each in a process of its
own, in turns. Plain evaluation is llama.cpp's default, without a callback. Compared are the median wall times from
the first chunk to the last; loading the model is not counted. The limit is 1.15.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from strata_pack.files import dump_json  # noqa: E402
from strata_pack.weights.imatrix.collect import SHIPPED_TEXT  # noqa: E402

LIMIT = 1.15
PLAIN = """
import json, sys
from pathlib import Path
from strata_pack.llama.logits_child import cut_windows
from strata_pack.llama.logits_native import LogitsModel

settings = json.load(sys.stdin)
with LogitsModel(Path(settings["model"]), context=settings["context"], threads=settings["threads"]) as model:
    tokens = [token for text in settings["texts"] for token in model.tokenize(text, parse_special=True)]
    windows = cut_windows(tokens, settings["context"], settings["limit"], model.bos)
    print(json.dumps({"chunks": len(windows)}), flush=True)
    for window in windows:
        model.evaluate(window, 0, len(window))
    print(json.dumps({"done": len(windows)}), flush=True)
"""


def seconds(command: list[str], settings: dict[str, Any]) -> float:
    """Return the wall seconds from the line that names the chunks to the end of the last chunk."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(settings))
        process.stdin.close()
        first = json.loads(process.stdout.readline())
        start = time.perf_counter()
        last: dict[str, Any] = {}
        for line in process.stdout:
            last = json.loads(line)
            if last.get("done") == first.get("chunks"):
                break
        taken = time.perf_counter() - start
    if last.get("done") != first.get("chunks"):
        raise SystemExit(f"the evaluation ended early: {last or first}")
    return taken


def main() -> int:
    """Measure, print, write; 1 if the limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--chunks", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/imatrix.json")
    options = parser.parse_args()
    settings: dict[str, Any] = {
        "model": str(options.model.resolve()),
        "texts": [SHIPPED_TEXT.read_text(encoding="utf-8")],
        "parse_special": True,
        "context": 512,
        "limit": options.chunks,
        "threads": options.threads,
        "process_output": False,
    }
    plain, ours = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            plain.append(seconds([sys.executable, "-c", PLAIN], settings))
            state = {"state": str(Path(folder) / f"{number}.npz"), "key": str(number)}
            ours.append(seconds([sys.executable, "-m", "strata_pack.llama.activations_child"], settings | state))
    ratio = statistics.median(ours) / statistics.median(plain)
    tokens = options.chunks * 512
    for name, taken in (("plain", plain), ("imatrix", ours)):
        print(f"{name:8} {statistics.median(taken):7.2f} s {tokens / statistics.median(taken):8.0f} tokens/s")
    print(f"ratio {ratio:.3f}, limit {LIMIT}{'' if ratio <= LIMIT else ': MISSED'}")
    options.out.write_bytes(dump_json({"plain_s": plain, "imatrix_s": ours, "tokens": tokens, "ratio": ratio}))
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
