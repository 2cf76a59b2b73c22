"""What collecting an importance matrix costs over plain evaluation: ``python bench/imatrix.py MODEL.gguf``.

Both evaluate the same chunks of the shipped calibration text through the embedded llama.cpp, each in a process of its
own, in turns. Plain evaluation is llama.cpp's default, without a callback. Compared are the median wall times from
the first chunk to the last; loading the model is not counted. The limit is 1.15. The processor times, of which loading
is a part, say more on a machine that is shared.
"""

from __future__ import annotations

import argparse
import json
import resource
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
from strata_pack.llama.logits import quiet_threads  # noqa: E402
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


def seconds(command: list[str], settings: dict[str, Any]) -> tuple[float, float]:
    """Return the wall seconds from the line that names the chunks to the end of the last chunk, and the processor's."""
    before = processor_seconds()
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=quiet_threads()) as process:
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
    return taken, processor_seconds() - before


def processor_seconds() -> float:
    """Return what all child processes that ended have used."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


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
    tokens = options.chunks * 512
    median = {
        name: (statistics.median(wall for wall, _ in taken), statistics.median(used for _, used in taken))
        for name, taken in (("plain", plain), ("imatrix", ours))
    }
    for name, (wall, used) in median.items():
        print(f"{name:8} {wall:7.2f} s {tokens / wall:8.0f} tokens/s, {used:7.2f} s of processor time")
    ratio, used_ratio = (median["imatrix"][i] / median["plain"][i] for i in (0, 1))
    print(f"ratio {ratio:.3f}, limit {LIMIT}{'' if ratio <= LIMIT else ': MISSED'}; of processor time {used_ratio:.3f}")
    rows = {"plain_s": plain, "imatrix_s": ours, "tokens": tokens}
    options.out.write_bytes(dump_json({**rows, "ratio": ratio, "processor_ratio": used_ratio}))
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
