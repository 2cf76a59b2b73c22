"""``strata-pack verify``: is a pack what its manifest says?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags

app = typer.Typer()


@app.command(epilog="Example: strata-pack verify packs/SmolLM2-135M-Instruct-Q4_K_M")
@with_shared_flags
def verify(
    pack: Annotated[Path, typer.Argument(help="A pack folder.", metavar="PACK")],
    *,
    out: Out,
) -> None:
    """Check the manifest, sizes, hashes, the GGUF's structure and all copies of the template (exit code 1 if not)."""
    from strata_pack.pack.verification import verify as verify_pack
    from strata_pack.report.screen import terminal

    with out.progress() as progress:
        report = verify_pack(pack, progress)
    out.show(terminal(report))
    out.result(report.to_dict())
    raise typer.Exit(report.exit_code)
