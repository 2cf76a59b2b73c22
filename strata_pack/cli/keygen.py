"""``strata-pack keygen``: the pair of keys that signs packs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags

app = typer.Typer()


@app.command(epilog="Example: strata-pack keygen --out key.pem")
@with_shared_flags
def keygen(
    file: Annotated[
        Path, typer.Option("--out", "-o", help="The private key; the public one is written next to it as .pub.")
    ] = Path("key.pem"),
    *,
    out: Out,
) -> None:
    """Make a pair of keys (ECDSA P-256). The private key is encrypted if STRATA_KEY_PASSWORD is set."""
    from strata_pack.publish import make_keys

    pair = make_keys(file)
    out.line(f"{pair.private}: the private key; it signs, so keep it to yourself")
    out.line(f"{pair.public}: the public key; whoever has it can check what you signed")
    out.line(f"fingerprint: {pair.fingerprint}")
    out.result({"private": str(pair.private), "public": str(pair.public), "fingerprint": pair.fingerprint})
