"""``strata-pack verify``: checks a pack's files against its manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strata_pack.cli.output import Out
from strata_pack.cli.policy import PolicyFile, load_policy
from strata_pack.cli.shared_flags import with_shared_flags
from strata_pack.errors import WrongUse

app = typer.Typer()


@app.command(epilog="Example: strata-pack verify packs/SmolLM2-135M-Instruct-Q4_K_M")
@with_shared_flags
def verify(
    pack: Annotated[Path, typer.Argument(help="A pack folder.", metavar="PACK")],
    key: Annotated[
        Path | None, typer.Option(help="Check the signature too, with this public key.", metavar="FILE")
    ] = None,
    require_signature: Annotated[
        bool, typer.Option("--require-signature", help="Fail unless the pack is signed (needs --key).")
    ] = False,
    card: Annotated[
        bool, typer.Option("--card", help="Check the model card too: licence, base model, agreement with the files.")
    ] = False,
    policy: PolicyFile = None,
    *,
    out: Out,
) -> None:
    """Check manifest, sizes, hashes, GGUF structure and all copies of the template (exit code 1 if a check fails).

    With --key the pack must be signed with that key. A changed byte, an added or missing file, an outdated signature or
    another key fails the check.
    """
    from strata_pack.pack.verification import verify as verify_pack
    from strata_pack.publish import is_signed, signature_check
    from strata_pack.report.exceptions import apply_exceptions
    from strata_pack.report.screen import terminal

    if require_signature and key is None:
        raise WrongUse("needs the public key", where="--require-signature", remedy="give --key FILE.pub too")
    exceptions = load_policy(policy)
    with out.progress() as progress:
        further = [signature_check(key, progress)] if key is not None or is_signed(pack) else []
        if card:
            from strata_pack.publish import card_check

            further.append(card_check())
        report = apply_exceptions(verify_pack(pack, progress, further), exceptions, "verify", pack.absolute().name)
    out.show(terminal(report))
    out.result(report.to_dict())
    raise typer.Exit(report.exit_code)
