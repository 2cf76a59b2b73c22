"""Runs the size search of ``quantize --fit`` and ``build --fit``, prints its result and writes its recipe file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from strata_pack.cli.output import Out
from strata_pack.errors import WrongUse

if TYPE_CHECKING:
    from strata_pack.weights.quantize.recipes import Recipe


def refuse_with_fit(quant: str | list[str] | None, recipe: Path | None) -> None:
    """Raise ``WrongUse`` if --fit is combined with options that name tensor types."""
    if quant is not None or recipe is not None:
        raise WrongUse("--fit chooses the types; it excludes --quant and --recipe")


def fitted(
    source: str,
    size: str,
    imatrix: Path | None,
    probe: bool | None,
    threads: int | None,
    recipe_file: Path | None,
    out: Out,
    *,
    reserve: int = 0,
) -> Recipe:
    """Return the recipe of the best mix of types for ``size``, and write it to ``recipe_file``."""
    from strata_pack.compare.fit.search import fit_file
    from strata_pack.files import write_atomic
    from strata_pack.outputs import check_outputs

    check_outputs([recipe_file], [source, imatrix])
    with out.progress() as progress:
        found = fit_file(source, size, imatrix, probe=probe, reserve=reserve, threads=threads, progress=progress)
    unspent = f"; {found.unspent}" if found.unspent else ""
    out.note(
        f"{found.size:,} of {found.budget:,} bytes, {found.bits_per_weight:.2f} bits per weight, "
        f"predicted KL divergence {found.predicted_kl:.6f}{unspent}"
    )
    if recipe_file is not None:
        write_atomic(recipe_file, found.text.encode())
        out.note(f"{recipe_file}: the recipe; it gives the same bytes without a search")
    return found.recipe
