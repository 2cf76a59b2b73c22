"""Which function makes which kind of node."""

from __future__ import annotations

from collections.abc import Mapping

from strata_pack.release import gates, making, page, publishing, split
from strata_pack.release.work import Maker

KINDS: Mapping[str, Maker] = {
    "fetch": making.fetch,
    "convert": making.convert,
    "imatrix": making.imatrix,
    "recipe": making.recipe,
    "pack": making.pack,
    "tensor": split.tensor,
    "verify": gates.verify_pack,
    "golden": gates.golden,
    "smoke": gates.smoke,
    "logits": gates.logits,
    "kl": gates.kl,
    "calls": gates.calls,
    "gates": gates.judge,
    "report": page.report,
    "publish": publishing.publish,
}
