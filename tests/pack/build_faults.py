"""Builds a pack again and again and kills the build with SIGKILL at its 1st, 2nd, 3rd ... change to the disk.

``python -m tests.pack.build_faults SOURCE WORK EVERY PRESET...``: for each n (for every fourth where EVERY is 4) a fork
dies before its n-th counted call, then a second fork builds again in the same place, undisturbed; several presets are
built together. Prints how many died, how many found a finished pack, and how many second builds gave other bytes than
builds in one go (there must be none).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

from strata_pack.chat.engines.engines import available_engines
from strata_pack.llama.ggml import Ggml
from strata_pack.pack.build import build_packs
from strata_pack.pack.request import BuildRequest
from strata_pack.weights.quantize.recipes import make_recipe
from tests.pack.faults import arm, forked
from tests.pack.tiny_pack import hashes

LIMIT = 300


def main() -> None:
    source, work, every, presets = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    golden = work / "golden.json"

    def requests(folder: Path) -> list[BuildRequest]:
        return [
            BuildRequest(source, folder / name, make_recipe(name), template="keep", golden=golden, threads=1)
            for name in presets
        ]

    Ggml.load()
    available_engines()
    reference = work / "reference"
    # Here and not in a child, so that what is imported at need is there for all children.
    for request in requests(reference):
        build_packs([request])
    wanted = {name: hashes(reference / name) for name in presets}
    found = {"died": 0, "whole after death": 0, "other bytes": 0}
    for deadly in range(1, LIMIT, every):
        folder = work / str(deadly)

        def die(folder: Path = folder, deadly: int = deadly) -> None:
            arm(deadly)
            build_packs(requests(folder))

        status = forked(die)
        if status == 0:
            break
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            raise SystemExit(f"step {deadly}: the child ended with status {status}")
        found["died"] += 1
        there = {name: hashes(folder / name) for name in presets if (folder / name).exists()}
        found["whole after death"] += bool(there)
        found["other bytes"] += any(digests != wanted[name] for name, digests in there.items())
        assert forked(partial(build_packs, requests(folder))) == 0, f"step {deadly}: the second build failed"
        found["other bytes"] += {path.name: hashes(path) for path in folder.iterdir()} != wanted
    else:
        raise SystemExit(f"not done after {LIMIT} steps")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
