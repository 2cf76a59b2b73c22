"""Runs the size search of ``quantize --fit`` and ``build --fit``, prints its result and writes its recipe file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from strata_pack.cli.output import Out
from strata_pack.errors import WrongUse

if TYPE_CHECKING:
    from strata_pack.cli.quant_options import QuantFlags
    from strata_pack.compare.fit.search import FitResult

TYPE_FLAGS = (
    *("quant", "recipe", "tensor_type", "output_tensor_type", "token_embedding_type", "leave_output_tensor", "pure"),
)
"""The flags that name types of tensors, as fields of ``QuantFlags``."""


def refuse_with_fit(flags: QuantFlags) -> None:
    """Raise ``WrongUse`` if --fit is combined with a flag that names types of tensors."""
    given = next((name for name in TYPE_FLAGS if getattr(flags, name)), None)
    if given is not None:
        flag = f"--{given.replace('_', '-')}"
        raise WrongUse(f"--fit chooses the types, so it excludes {flag}", remedy="give one of the two")


def fitted(
    source: str,
    flags: QuantFlags,
    recipe_file: Path | None,
    out: Out,
    *,
    reserve: int = 0,
    projector: int = 0,
    mtp: bool = True,
) -> FitResult:
    """Return the best mix of types for the size in ``flags``, and write its recipe to ``recipe_file``.

    ``reserve``, ``projector``: see ``FileShape``; ``mtp``: whether the file has the draft head of ``source``.
    """
    from strata_pack.compare.fit.planner import FileShape
    from strata_pack.compare.fit.search import fit_file
    from strata_pack.files import write_atomic
    from strata_pack.outputs import check_outputs

    assert flags.fit is not None
    check_outputs([recipe_file], [source, flags.imatrix])
    shape = FileShape(
        keep_split=flags.keep_split,
        split_bytes=flags.split_bytes(),
        reserve=reserve,
        projector=projector,
        allow_requantize=flags.allow_requantize,
    )
    with out.progress() as progress:
        found = fit_file(
            source,
            flags.fit,
            flags.imatrix,
            edits=flags.edits(),
            mtp=mtp,
            shape=shape,
            probe=flags.fit_probe,
            threads=flags.threads,
            progress=progress,
        )
    unspent = f"; {found.unspent}" if found.unspent else ""
    is_guess = found.predicted_kl > 0 and not found.sensitivities
    basis = "KL divergence roughly estimated from typical costs" if is_guess else "predicted KL divergence"
    out.note(
        f"{found.size:,} of {found.budget:,} bytes, {found.bits_per_weight:.2f} bits per weight, "
        f"{basis} {found.predicted_kl:.6f}{unspent}"
    )
    if recipe_file is not None:
        write_atomic(recipe_file, found.text.encode())
        out.note(f"{recipe_file}: the recipe; it gives the same bytes without a search")
    return found
