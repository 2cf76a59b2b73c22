"""How fast ``compare`` is next to llama-perplexity.

    python bench/compare.py MODEL.gguf AGAINST.gguf --perplexity BIN

BIN is ``llama-perplexity`` from the pinned source, compiled for AVX2 as the embedded llama.cpp is, or natively.
Both judge the same windows of the same text, in turns: llama-perplexity writes the reference's logits in one run and
reads them in a second (``--kl-divergence``), ``compare`` evaluates both models. Compared are whole wall times, with
loading; the processor times say more on a shared machine. The limit: at least as fast.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from strata_pack.compare.full import compare_full  # noqa: E402
from strata_pack.compare.texts import PROSE, Text  # noqa: E402
from strata_pack.files import dump_json  # noqa: E402

LIMIT = 1.0
WINDOW = 512


def perplexity(binary: Path, model: Path, against: Path, text: Path, windows: int, threads: int) -> tuple[float, float]:
    """Return the wall seconds of both runs of llama-perplexity, and its mean KL divergence."""
    with tempfile.TemporaryDirectory() as folder:
        kept = str(Path(folder) / "logits")
        shared = ["-f", str(text), "-c", str(WINDOW), "-b", str(WINDOW), "--chunks", str(windows), "-t", str(threads)]
        start = time.perf_counter()
        found = ""
        for chosen, more in ((against, []), (model, ["--kl-divergence"])):
            command = [str(binary), "-m", str(chosen), *shared, "--kl-divergence-base", kept, *more]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"llama-perplexity failed: {done.stderr[-500:]}")
            found = done.stdout + done.stderr
        taken = time.perf_counter() - start
    mean = re.search(r"Mean\s+KLD:\s+(\S+)", found)
    return taken, float(mean.group(1)) if mean else float("nan")


def main() -> int:
    """Measure, print, write; 1 if the limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("against", type=Path)
    parser.add_argument("--perplexity", type=Path, required=True)
    parser.add_argument("--text", type=Path, default=PROSE, help="the shipped prose by default")
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/compare.json")
    options = parser.parse_args()
    theirs, ours = [], []
    used = {"theirs": 0.0, "ours": 0.0}
    kl_theirs = kl_ours = 0.0
    tokens = 0
    text = Text.read(options.text)
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(text.content)
        file.flush()
        for _ in range(options.rounds):
            before = sum(os.times()[:4])
            seconds, kl_theirs = perplexity(
                options.perplexity,
                options.model,
                options.against,
                Path(file.name),
                options.windows,
                options.threads,
            )
            theirs.append(seconds)
            between = sum(os.times()[:4])
            start = time.perf_counter()
            found = compare_full(
                options.model, options.against, text, context=WINDOW, limit=options.windows, threads=options.threads
            )
            ours.append(time.perf_counter() - start)
            used["theirs"] += between - before
            used["ours"] += sum(os.times()[:4]) - between
            kl_ours, tokens = found.kl_mean, 2 * found.windows * WINDOW
    rates = {name: tokens / statistics.median(taken) for name, taken in (("theirs", theirs), ("ours", ours))}
    print(f"llama-perplexity {rates['theirs']:7.0f} tokens/s, mean KL {kl_theirs:.6f}")
    print(f"compare          {rates['ours']:7.0f} tokens/s, mean KL {kl_ours:.6f}")
    ratio = rates["ours"] / rates["theirs"]
    print(f"ratio {ratio:.2f}, at least {LIMIT}{'' if ratio >= LIMIT else ': MISSED'}")
    print(f"processor time {used['theirs']:.1f} s and {used['ours']:.1f} s, ratio {used['theirs'] / used['ours']:.2f}")
    rows = {"llama_perplexity_s": theirs, "compare_s": ours, "tokens": tokens, "ratio": ratio, "processor_s": used}
    options.out.write_bytes(dump_json(rows | {"kl_mean": kl_ours, "kl_mean_llama_perplexity": kl_theirs}))
    return int(ratio < LIMIT)


if __name__ == "__main__":
    sys.exit(main())
