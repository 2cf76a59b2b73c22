"""``strata-pack cache``: lists the cache and removes entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata_pack.cli import complete
from strata_pack.cli.bars import amount_text
from strata_pack.cli.confirm import DryRun, Yes, consent
from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags

if TYPE_CHECKING:
    from strata_pack.cache import CacheEntry

app = typer.Typer(
    help="Show and empty the cache of built runtimes and probes.",
    epilog="Example: strata-pack cache list",
    no_args_is_help=True,
)


@app.command("list", epilog="Example: strata-pack cache list")
@with_shared_flags
def list_(*, out: Out) -> None:
    """List the entries of the cache. The Hub cache is not part of it: `hf cache` shows and empties that one."""
    from strata_pack.cache import cache_entries
    from strata_pack.resources import cache_dir

    entries = cache_entries()
    for entry in entries:
        out.line(f"{amount_text(entry.size, None, 'bytes'):>12}  {entry.name}")
    out.line(f"{cache_dir()}: {amount_text(sum(entry.size for entry in entries), None, 'bytes')}")
    out.result({"folder": str(cache_dir()), "entries": _rows(entries)})


@app.command(epilog="Example: strata-pack cache clean --yes")
@with_shared_flags
def clean(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Entries of `cache list` (default: all).", autocompletion=complete.cache_entries
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    *,
    out: Out,
) -> None:
    """Remove entries of the cache, after a question. A removed entry is made again when it is needed."""
    from strata_pack.cache import clean_cache

    chosen = clean_cache(names or (), dry_run=True)
    said = [f"{entry.name}: {amount_text(entry.size, None, 'bytes')}" for entry in chosen]
    if not dry_run:
        consent(lambda: [f"{one} will be removed" for one in said], out, yes=yes)
        if chosen:
            clean_cache([entry.name for entry in chosen])
    for one in said:
        out.line(f"{one} would be removed" if dry_run else f"{one} removed")
    if not chosen:
        out.line("the cache is empty; nothing to do")
    out.result({"removed": bool(chosen) and not dry_run, "entries": _rows(chosen)})


def _rows(entries: list[CacheEntry]) -> list[dict[str, Any]]:
    return [{"name": entry.name, "path": str(entry.path), "size": entry.size} for entry in entries]
