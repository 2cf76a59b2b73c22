"""Builds a pack again and again and kills the build with SIGKILL at its 1st, 2nd, 3rd ... change to the disk.

``python -m tests.pack.build_faults SOURCE WORK``: for each n a fork dies before its n-th counted call, then a second
fork builds again in the same place, undisturbed. Prints how many died, how many found the finished pack, and how many
second builds gave other bytes than a build in one go (there must be none).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from strata_pack.chat.engines.engines import available_engines
from strata_pack.llama.ggml import Ggml
from strata_pack.pack.build import build_pack
from strata_pack.pack.request import BuildRequest
from strata_pack.weights.quantize.recipes import make_recipe
from tests.pack.faults import arm
from tests.pack.tiny_pack import hashes

LIMIT = 300


def forked(work: Callable[[], object]) -> int:
    """Run ``work`` in a child and return its wait status."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def main() -> None:
    source, work = sys.argv[1], Path(sys.argv[2])
    golden = work / "golden.json"

    def request(out: Path) -> BuildRequest:
        return BuildRequest(source, out, make_recipe("Q8_0"), template="keep", golden=golden, threads=1)

    Ggml.load()
    available_engines()
    reference = work / "reference/pack"
    assert forked(lambda: build_pack(request(reference))) == 0
    wanted = hashes(reference)
    found = {"died": 0, "whole after death": 0, "other bytes": 0}
    for deadly in range(1, LIMIT):
        out = work / f"{deadly}/pack"

        def die(out: Path = out, deadly: int = deadly) -> None:
            arm(deadly)
            build_pack(request(out))

        status = forked(die)
        if status == 0:
            break
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            raise SystemExit(f"step {deadly}: the child ended with status {status}")
        found["died"] += 1
        if out.exists():
            found["whole after death"] += 1
            if not out.with_name("pack.partial").joinpath("build.json").exists():
                found["other bytes"] += hashes(out) != wanted
                continue
        assert forked(lambda out=out: build_pack(request(out))) == 0, f"step {deadly}: the second build failed"
        found["other bytes"] += hashes(out) != wanted or [path.name for path in out.parent.iterdir()] != ["pack"]
    else:
        raise SystemExit(f"not done after {LIMIT} steps")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
