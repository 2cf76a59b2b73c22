"""``strata-pack sign``: signs every file of a pack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags
from strata_pack.plural import counted

app = typer.Typer()


@app.command(epilog="Example: strata-pack sign packs/SmolLM2-135M-Instruct-Q4_K_M --key key.pem")
@with_shared_flags
def sign(
    pack: Annotated[Path, typer.Argument(help="A pack folder.", metavar="PACK")],
    key: Annotated[Path, typer.Option(help="The private key, as `keygen` makes it.", metavar="FILE")],
    *,
    out: Out,
) -> None:
    """Sign a pack, offline: model.sig covers every other file in it (OpenSSF Model Signing).

    Sign last. After any change in the pack, such as `template install`, sign it again.
    """
    from strata_pack.publish import sign_pack

    with out.progress() as progress:
        signed = sign_pack(pack, key, progress)
    out.line(f"{signed.path}: {counted(signed.files, 'file')} signed with the key {signed.fingerprint[:16]}")
    out.result({"signature": str(signed.path), "files": signed.files, "fingerprint": signed.fingerprint})
