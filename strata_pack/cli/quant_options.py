"""Defines the flags for tensor types that `build` and `quantize` share.

``with_quant_flags`` gives a command all of them as one ``QuantFlags``, which turns them into recipes and edits.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from strata_pack.cli import complete
from strata_pack.cli.output import Out
from strata_pack.errors import WrongUse

if TYPE_CHECKING:
    from strata_pack.weights.quantize.edits import Edits
    from strata_pack.weights.quantize.recipes import Recipe

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
OutputType = Annotated[
    str | None, typer.Option(help="Of output.weight.", rich_help_panel=TYPES, autocompletion=complete.types)
]
EmbeddingType = Annotated[
    str | None, typer.Option(help="Of token_embd.", rich_help_panel=TYPES, autocompletion=complete.types)
]
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


@dataclass(frozen=True)
class QuantFlags:
    """What the flags say; a field is a parameter of the command."""

    threads: Threads = None
    kernels: Kernels = "auto"
    quant: Quants = None
    recipe: RecipeFile = None
    fit: FitSize = None
    fit_probe: FitProbe = None
    imatrix: ImatrixFile = None
    tensor_type: TensorType = None
    output_tensor_type: OutputType = None
    token_embedding_type: EmbeddingType = None
    leave_output_tensor: LeaveOutput = False
    pure: Pure = False
    keep_split: KeepSplit = False
    split_max_size: SplitMaxSize = None
    override_kv: OverrideKv = None
    prune_layers: PruneLayers = None
    include_weights: IncludeWeights = None
    exclude_weights: ExcludeWeights = None
    allow_requantize: AllowRequantize = False
    allow_nonfinite: AllowNonfinite = False

    def recipes(
        self,
        source: str,
        place: Path | None,
        out: Out,
        *,
        reserve: int = 0,
        projector: int = 0,
        mtp: bool = True,
    ) -> tuple[list[Recipe], dict[str, Any]]:
        """Return a recipe a preset, or the one of ``--fit``, which is left in ``place``; and JSON data on ``--fit``.

        ``reserve``, ``projector`` and ``mtp``: see ``fitted``. Raises as ``make_recipe`` and ``fit_file``.
        """
        from strata_pack.cli.fitting import fitted
        from strata_pack.weights.quantize.recipes import make_recipe

        if self.fit is not None:
            self.check_fit()
            found = fitted(source, self, place, out, reserve=reserve, projector=projector, mtp=mtp)
            return [found.recipe], {"fit": found.to_dict()}
        named = [
            make_recipe(
                preset,
                self.recipe,
                tensor_types=self.tensor_type or (),
                output=self.output_tensor_type,
                embedding=self.token_embedding_type,
                leave_output=self.leave_output_tensor,
                pure=self.pure,
            )
            for preset in self.quant or (None,)
        ]
        return named, {}

    def check_fit(self) -> None:
        """Raise ``WrongUse`` if --fit is combined with a flag that names types, or its size is none."""
        from strata_pack.cli.fitting import refuse_with_fit
        from strata_pack.compare.fit.budget import parse_budget

        if self.fit is not None:
            refuse_with_fit(self)
            parse_budget(self.fit)

    def edits(self) -> Edits:
        """Return the changes to the model; raises as ``make_edits``."""
        from strata_pack.weights.quantize.edits import make_edits

        return make_edits(
            self.override_kv or (), self.prune_layers, self.include_weights or (), self.exclude_weights or ()
        )

    def split_bytes(self) -> int | None:
        """Return the bytes in ``--split-max-size``, ``300M`` or ``4G`` (powers of 1000); ``WrongUse`` if it is none."""
        text = self.split_max_size
        if text is None:
            return None
        unit = {"M": 10**6, "G": 10**9}.get(text[-1:].upper())
        if (
            unit is None
            or not text.isascii()
            or not text[:-1].isdecimal()
            or not 0 < int(text[:-1][:9]) * unit < 1 << 60
        ):
            raise WrongUse("is no size", where=f"--split-max-size {text}", remedy="write for example 300M or 4G")
        return int(text[:-1]) * unit


def with_quant_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command(..., flags: QuantFlags)`` the parameters that the fields of ``QuantFlags`` describe."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        taken = {field.name: kwargs.pop(field.name) for field in fields(QuantFlags) if field.name in kwargs}
        command(*args, flags=QuantFlags(**taken), **kwargs)

    signature = inspect.signature(command, eval_str=True)
    kept = [parameter for parameter in signature.parameters.values() if parameter.name != "flags"]
    hints = get_type_hints(QuantFlags, include_extras=True)
    added = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(QuantFlags)
    ]
    wrapper.__signature__ = signature.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
    del wrapper.__wrapped__
    return wrapper
