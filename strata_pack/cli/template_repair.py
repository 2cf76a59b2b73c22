"""``strata-pack template repair``: adds history repair to a model's template and proves it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata_pack.cli import complete
from strata_pack.cli.confirm import Yes, consent
from strata_pack.cli.differences import show_difference
from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags

if TYPE_CHECKING:
    from strata_pack.chat.repair.repair import RepairRefused, RepairResult
    from strata_pack.pack.template.copies import NamedTemplate


MAIN_FILE = "chat_template.jinja"
"""The file next to which transformers stores named templates."""


@with_shared_flags
def repair(
    target: Annotated[
        str, typer.Argument(metavar="TEMPLATE", help="A file, a .gguf, a model folder, a pack or a hub id.")
    ],
    out: Out,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the repaired template here.")
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Overwrite the template file.")] = False,
    show_diff: Annotated[bool, typer.Option("--diff", help="Show the change.")] = False,
    yes: Yes = False,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="Prove on this engine: jinja2, minijinja, transformers, llama.cpp; repeatable.",
            autocompletion=complete.engines,
        ),
    ] = None,
) -> None:
    """Add history repair to a model's own template, with a proof on generated conversations.

    Conversations without a stranded tool call must render byte for byte as before, and every stranded call must be
    closed, on every engine; otherwise nothing is written and the first difference is shown. If the model has a separate
    template for tools, it is repaired too and written to additional_chat_templates/tool_use.jinja next to FILE; with
    --in-place, the one next to the file is repaired.
    """
    from strata_pack.chat.render.template import normalize_source
    from strata_pack.chat.repair.engines import proof_engines
    from strata_pack.chat.repair.repair import RepairRefused, diff, repair_template
    from strata_pack.errors import WrongUse
    from strata_pack.files import write_atomic
    from strata_pack.outputs import check_outputs
    from strata_pack.pack.paths import ADDITIONAL_DIR, TOOLS_NAME
    from strata_pack.pack.template.source import load_set

    place = Path(target)
    if in_place and (output is not None or not place.is_file() or place.suffix.lower() in (".gguf", ".json")):
        raise WrongUse(
            "--in-place needs a template file",
            where=target,
            remedy="use -o FILE, then `strata-pack template install` for a .gguf or a pack",
        )
    wanted = place if in_place else output
    for_tools = None if wanted is None else wanted.parent / ADDITIONAL_DIR / f"{TOOLS_NAME}.jinja"
    check_outputs((output,), (target,))
    check_outputs((wanted,), ())
    with out.progress() as progress:
        found = load_set(target, progress)
    if in_place and place.name == MAIN_FILE and for_tools is not None and for_tools.is_file():
        found = replace(found, tools=load_set(str(for_tools)).main)
    if found.tools is not None and not in_place:
        check_outputs((for_tools,), (target,))
    results: list[tuple[NamedTemplate, RepairResult, Path | None, str]] = []
    with proof_engines(engine or ()) as engines:
        for one, path in ((found.main, wanted), (found.tools, for_tools)):
            if one is None:
                continue
            source = normalize_source(one.text)
            try:
                result = repair_template(source, engines)
            except RepairRefused as refused:
                _show_difference(refused, out)
                raise
            results.append((one, result, path, diff(source, result.text)))
    if show_diff:
        for _, _, _, change in results:
            out.line(change.rstrip("\n"))
    written = [path for _, result, path, _ in results if path is not None and (result.changed or not in_place)]
    lost = [f"{path}: will be replaced" for path in written if path.exists()]
    consent(lambda: lost, out, yes=yes, named=True)
    for one, result, path, _ in results:
        if path in written:
            assert path is not None
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, result.text.encode("utf-8"))
        _say(target if one is found.main else one.where, result, path, out)
    entries = [
        {**result.to_dict(), "written": None if path is None else str(path), "diff": change}
        for _, result, path, change in results
    ]
    tools = {"where": results[1][0].where, **entries[1]} if len(entries) > 1 else None
    out.result({"target": target, **entries[0], "tools": tools})


def _say(target: str, result: RepairResult, written: Path | None, out: Out) -> None:
    if not result.changed:
        out.line(f"{target}: not needed, {result.why}")
    else:
        out.line(f"{target}: repaired ({result.proof.form} calls), {result.why}")
    for proof in result.proof.engines:
        refused = f", {proof.refused} not taken with or without the repair" if proof.refused else ""
        out.line(
            f"  proved on {proof.engine} {proof.version}: {proof.unchanged} conversations unchanged, "
            f"{proof.closed} with a stranded call closed{refused}"
        )
    if written is not None:
        out.line(f"  written to {written}" if result.changed else f"  {written}: the template, unchanged")
    elif result.changed:
        out.line("  nothing was written: give -o FILE, or --in-place")


def _show_difference(refused: RepairRefused, out: Out) -> None:
    """Show the first difference of the first conversation that does not render as required."""
    difference = refused.difference
    if difference is None:
        return
    out.line(f"{difference}; wanted in red, got in green:")
    show_difference(difference.wanted, difference.got, out)
