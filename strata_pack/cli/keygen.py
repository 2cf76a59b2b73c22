"""``strata-pack keygen``: makes a key pair for signing packs."""

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
        Path, typer.Option("--out", "-o", help="The private key; the public key is written next to it as .pub.")
    ] = Path("key.pem"),
    *,
    out: Out,
) -> None:
    """Make a key pair (ECDSA P-256). The private key is encrypted if STRATA_KEY_PASSWORD is set."""
    from strata_pack.publish import make_keys

    pair = make_keys(file)
    out.line(f"{pair.private}: the private key; keep it secret")
    out.line(f"{pair.public}: the public key; publish it so that others can check your signatures")
    out.line(f"fingerprint: {pair.fingerprint}")
    out.result({"private": str(pair.private), "public": str(pair.public), "fingerprint": pair.fingerprint})
