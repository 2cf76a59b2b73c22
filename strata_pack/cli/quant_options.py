"""Defines the flags for tensor types that `build` and `quantize` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from strata_pack.cli import complete
from strata_pack.errors import WrongUse

TYPES = "Types of tensors"

Quants = Annotated[
    list[str] | None,
    typer.Option(
        "--quant",
        help="Preset of llama-quantize (default: Q4_K_M); repeatable, the source is read once.",
        rich_help_panel=TYPES,
        autocompletion=complete.presets,
    ),
]
RecipeFile = Annotated[Path | None, typer.Option(help="A recipe (TOML).", metavar="FILE", rich_help_panel=TYPES)]
FitSize = Annotated[
    str | None,
    typer.Option(
        "--fit",
        help="The best mix of types for a size: 600MiB, 4.5bpw, '16GiB card at 32k context'.",
        metavar="SIZE",
        rich_help_panel=TYPES,
    ),
]
FitProbe = Annotated[
    bool | None,
    typer.Option(
        "--fit-probe/--no-fit-probe",
        help="Measure for --fit on the model what errors cost (default: up to 2 billion weights).",
        rich_help_panel=TYPES,
        show_default=False,
    ),
]
ImatrixFile = Annotated[
    Path | None, typer.Option(help="Importance matrix (.gguf or .dat).", metavar="FILE", rich_help_panel=TYPES)
]
TensorType = Annotated[list[str] | None, typer.Option(help="REGEX=TYPE for some tensors.", rich_help_panel=TYPES)]
OutputType = Annotated[str | None, typer.Option(help="Of output.weight.", rich_help_panel=TYPES)]
EmbeddingType = Annotated[str | None, typer.Option(help="Of token_embd.", rich_help_panel=TYPES)]
LeaveOutput = Annotated[
    bool, typer.Option("--leave-output-tensor", help="Keep output.weight's type.", rich_help_panel=TYPES)
]
Pure = Annotated[bool, typer.Option("--pure", help="Every matrix gets the base type.", rich_help_panel=TYPES)]
KeepSplit = Annotated[bool, typer.Option("--keep-split", help="As many shards as the source.", rich_help_panel=TYPES)]
AllowRequantize = Annotated[
    bool, typer.Option("--allow-requantize", help="Accept a quantized source.", rich_help_panel=TYPES)
]
AllowNonfinite = Annotated[
    bool, typer.Option("--allow-nonfinite", help="Accept NaN and infinities.", rich_help_panel=TYPES)
]
Threads = Annotated[int | None, typer.Option(min=1, max=256, help="Cores to use; all by default.")]
Kernels = Annotated[
    Literal["auto", "ggml"],
    typer.Option(help="ggml: quantize with ggml only; auto: use the faster kernels where they apply."),
]

CHANGES = "Changes to the model"

OverrideKv = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=TYPE:VALUE", help="Replace or add metadata; repeatable.", rich_help_panel=CHANGES),
]
PruneLayers = Annotated[
    str | None, typer.Option(metavar="N,N,...", help="Leave these layers out.", rich_help_panel=CHANGES)
]
IncludeWeights = Annotated[
    list[str] | None,
    typer.Option(metavar="PART", help="Use importances only of names with PART.", rich_help_panel=CHANGES),
]
ExcludeWeights = Annotated[
    list[str] | None,
    typer.Option(metavar="PART", help="Use no importances of names with PART.", rich_help_panel=CHANGES),
]
SplitMaxSize = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Split into files of 300M, 4G, ...", rich_help_panel=CHANGES)
]


def parse_split_size(text: str | None) -> int | None:
    """Return the bytes in ``text`` such as ``300M`` or ``4G`` (powers of 1000); ``WrongUse`` if it is no size."""
    if text is None:
        return None
    unit = {"M": 10**6, "G": 10**9}.get(text[-1:].upper())
    if unit is None or not text[:-1].isdecimal() or not 0 < int(text[:-1][:9]) * unit < 1 << 60:
        raise WrongUse("is no size", where=f"--split-max-size {text}", remedy="write for example 300M or 4G")
    return int(text[:-1]) * unit
