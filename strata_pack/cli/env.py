"""``strata-pack env``: prints the facts that a bug report needs."""

from __future__ import annotations

import typer

from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags

app = typer.Typer()


@app.command(epilog="Example: strata-pack env --json > environment.json")
@with_shared_flags
def env(*, out: Out) -> None:
    """Show versions, runtimes, devices, folders and variables for a bug report. Secrets are left out."""
    from dataclasses import asdict

    from strata_pack.environment import describe_environment
    from strata_pack.llama.devices import embedded_devices, nvidia_devices
    from strata_pack.llama.quantizer import Quantizer, kernel_line
    from strata_pack.llama.runtimes import list_runtimes

    facts = describe_environment()
    facts["runtimes"] = [
        {
            "name": one.name,
            "backend": one.backend,
            "origin": one.origin,
            "path": None if one.path is None else str(one.path),
        }
        for one in list_runtimes()
    ]
    facts["devices"] = [asdict(device) for device in dict.fromkeys((*embedded_devices(), *nvidia_devices()))]
    kernels = Quantizer.load().state()
    facts["kernels"] = asdict(kernels)
    for name in ("strata-pack", "python", "executable", "platform", "machine", "processors"):
        out.line(f"{name}: {facts[name]}")
    out.line(kernel_line(kernels))
    for title in ("packages", "folders", "variables"):
        out.line(f"{title}:")
        for name, value in facts[title].items():
            out.line(f"  {name}: {value or 'not installed'}")
    for title, rows in (("runtimes", facts["runtimes"]), ("devices", facts["devices"])):
        out.line(f"{title}:")
        for row in rows:
            out.line("  " + ", ".join(f"{key} {value}" for key, value in row.items() if value is not None))
    out.result(facts)
