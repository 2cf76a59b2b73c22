"""What it costs to look at a header: processor time of ``inspect``, and of ``verify`` on a pack of a header's size.

    python bench/headers.py MODEL.gguf --baseline OLD_CHECKOUT [--rounds 9]

MODEL is any GGUF of about 100 MB (its weights are not read by ``inspect``). OLD_CHECKOUT is a checkout of the version
to compare with; both run with this Python, in turns. Processor time (user and system) of the child processes is
compared, the least of all rounds. The limit is 0.4 of the older version's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIMIT = 0.4
START = "import sys; from strata_pack.{module} import main; sys.argv[0] = 'strata-pack'; main()"


def cost(checkout: Path, arguments: list[str]) -> float:
    """Return the seconds of processor time that one command takes in ``checkout``."""
    module = "cli.main" if (checkout / "strata_pack/cli/main.py").is_file() else "cli.app"
    command = [sys.executable, "-c", START.format(module=module), *arguments]
    before = os.times()
    done = subprocess.run(
        command, cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)}, capture_output=True, text=True
    )
    after = os.times()
    if done.returncode:
        raise SystemExit(f"{checkout}: {' '.join(arguments)}: {done.stderr}")
    return after.children_user + after.children_system - before.children_user - before.children_system


def small_pack(folder: Path) -> Path:
    """Return a pack whose model is a few kilobytes, so that ``verify`` does little but look at headers."""
    sys.path.insert(0, str(ROOT))
    from strata_pack.pack.build import build_pack
    from strata_pack.pack.request import BuildRequest
    from strata_pack.weights.quantize.recipes import make_recipe
    from tests.pack.tiny_gguf import write_tiny

    source = write_tiny(folder / "tiny.gguf")
    request = BuildRequest(str(source), folder / "pack", make_recipe("F16"), template="keep")
    pack = build_pack(request).path
    # Versions before the request was recorded do not know the field.
    manifest = json.loads((pack / "manifest.json").read_bytes())
    for key in ("request",):
        manifest.pop(key, None)
    manifest["quantizer"].pop("kernels", None)
    (pack / "manifest.json").write_text(json.dumps(manifest))
    for name in ("provenance.json", "sbom.cdx.json"):  # earlier versions report the attestations as unknown files
        (pack / name).unlink(missing_ok=True)
    return pack


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--baseline", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/headers.json")
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as name:
        pack = small_pack(Path(name))
        for what, arguments in {
            "inspect": ["inspect", str(options.model.resolve()), "--json"],
            "verify": ["verify", str(pack), "--json"],
        }.items():
            old, new = [], []
            for _ in range(options.rounds):
                old.append(cost(options.baseline.resolve(), arguments))
                new.append(cost(ROOT, arguments))
            results[what] = {"baseline_s": min(old), "now_s": min(new), "ratio": round(min(new) / min(old), 3)}
    print(f"{'command':10} {'baseline':>10} {'now':>10} {'ratio':>7}  (limit {LIMIT})")
    for what, row in results.items():
        print(f"{what:10} {row['baseline_s']:>8.3f} s {row['now_s']:>8.3f} s {row['ratio']:>7.3f}")
    options.out.write_text(json.dumps({"limit": LIMIT, "rounds": options.rounds, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
