"""``strata-pack release``: builds, checks and publishes many packs from one file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata_pack.cli.confirm import DryRun, Yes, can_ask, consent
from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags
from strata_pack.errors import WrongUse

if TYPE_CHECKING:
    from strata_pack.progress import Progress
    from strata_pack.publish.publishing import PublishedDict
    from strata_pack.release.executor import Executor
    from strata_pack.release.run import Outcome
    from strata_pack.release.schedule import Schedule

app = typer.Typer(
    help="Build, check and publish many packs from one file, on one machine or several.",
    epilog="Example: strata-pack release run release.toml",
    no_args_is_help=True,
)

WORKERS = "Workers"

File = Annotated[Path, typer.Argument(metavar="FILE", help="The release file.")]
Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Release files; their tasks share the workers.")]
Update = Annotated[bool, typer.Option("--update", help="Use the commit that the source's revision names now.")]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Processes on this machine; one by default.", rich_help_panel=WORKERS)
]
Dask = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS|local", help="Run on a Dask cluster that shares the folder.", rich_help_panel=WORKERS
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", "-t", min=1, help="Cores of one worker.", rich_help_panel=WORKERS)
]

MARKS = {
    "done": "done",
    "made": "made",
    "ready": "to do",
    "waits": "to do",
    "failed": "failed",
    "skipped": "not done",
}


@app.command(epilog="Example: strata-pack release init Qwen/Qwen3-0.6B")
@with_shared_flags
def init(
    source: Annotated[str, typer.Argument(help="A .gguf, a folder, or a hub id.")],
    file: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The release file to write.")] = Path(
        "release.toml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
    yes: Yes = False,
    *,
    out: Out,
) -> None:
    """Inspect a source and write a commented release file for it; no weights are downloaded."""
    from strata_pack.files import write_atomic
    from strata_pack.outputs import check_file_output, check_outputs
    from strata_pack.release.init import look_at, release_text

    check_outputs([file], [source])
    check_file_output(file, force=force)
    consent(lambda: [f"{file}: will be replaced"] if file.exists() else [], out, yes=yes, named=force)
    with out.progress() as progress:
        looked = look_at(source, progress)
    write_atomic(file, release_text(source, looked).encode())
    out.line(f"{file}: a release of {looked.name}; check it, then:")
    out.line(f"  strata-pack release plan {file}")
    out.result({"file": str(file), "name": looked.name, "format": looked.format, "weights": looked.weights})


@app.command(epilog="Example: strata-pack release plan release.toml")
@with_shared_flags
def plan(file: File, update: Update = False, *, out: Out) -> None:
    """Show what a run would do. Nothing is written, and no weights are downloaded."""
    from strata_pack.release.release_file import read_release
    from strata_pack.release.run import open_schedule

    with out.progress() as progress:
        schedule = open_schedule(read_release(file), update=update, progress=progress)
    _show_schedule(out, schedule)
    out.result(_schedule_dict(schedule))


@app.command(epilog="Example: strata-pack release run release.toml --workers 3")
@with_shared_flags
def run(
    files: Files,
    workers: Workers = None,
    dask: Dask = None,
    threads: Threads = None,
    split_tensors: Annotated[
        bool, typer.Option("--split-tensors", help="Distribute the tensors of one huge model.", rich_help_panel=WORKERS)
    ] = False,
    update: Update = False,
    *,
    out: Out,
) -> None:
    """Run everything that is not done yet: packs, measurements, gates, the page.

    An interrupted run is resumed by the same command. Exit code 1: a pack does not pass its gates.
    """
    from strata_pack.release.release_file import read_release
    from strata_pack.release.run import open_schedule, run_releases

    releases = _apart([read_release(file) for file in files])
    if split_tensors and len(releases) > 1:
        raise WrongUse("--split-tensors is for one release at a time")
    with out.progress() as progress:
        schedules = [open_schedule(release, update=update, progress=progress) for release in releases]
        if all(schedule.ended for schedule in schedules):
            outcome = run_releases(schedules, None, progress)
        else:
            with _executor(schedules, workers, dask, threads, progress) as executor:
                if split_tensors:
                    from strata_pack.release.split_tensors import run_split

                    outcome = run_split(schedules[0], executor, progress)
                else:
                    outcome = run_releases(schedules, executor, progress)
    _end(out, outcome)


@app.command(epilog="Example: strata-pack release status release.toml")
@with_shared_flags
def status(
    file: File,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the Hub.")] = False,
    *,
    out: Out,
) -> None:
    """Show the state of a release, and what has changed on the Hub since: source, template, published files.

    Exit code 1 if there is something to do, or a pack does not pass its gates.
    """
    from strata_pack.release.lock import read_lock
    from strata_pack.release.release_file import read_release
    from strata_pack.release.run import Outcome, open_schedule
    from strata_pack.release.status import changes

    release = read_release(file)
    schedule = open_schedule(release)
    found = [] if offline else changes(release, read_lock(release.lock_path))
    _show_schedule(out, schedule)
    for change in found:
        out.line(f"{change.what}: {change.sentence}")
    looked = schedule.source["commit"] is not None or (release.publish is not None and release.publish.repo is not None)
    if looked and not found and not offline:
        out.line("the Hub matches the lock file")
    for name in Outcome((schedule,)).held_back:
        out.line(f"held back: {name} does not pass its gates")
    finished = schedule.ended and not schedule.failures and not Outcome((schedule,)).held_back
    out.result({**_schedule_dict(schedule), "changes": [change.to_dict() for change in found]})
    if found or not finished:
        raise typer.Exit(1)


@app.command(epilog="Example: strata-pack release publish release.toml --dry-run")
@with_shared_flags
def publish(
    file: File,
    dry_run: DryRun = False,
    accept_licence: Annotated[
        bool, typer.Option("--accept-licence", help="You have read the terms of the source and may redistribute it.")
    ] = False,
    workers: Workers = None,
    dask: Dask = None,
    threads: Threads = None,
    yes: Yes = False,
    *,
    out: Out,
) -> None:
    """Run everything that is not done yet, and publish every pack that passes its gates.

    On a terminal it asks before it replaces or removes a published file.
    """
    from strata_pack.release.publish_node import check_key, publish_dry_run
    from strata_pack.release.release_file import read_release
    from strata_pack.release.run import open_schedule, run_releases

    release = replace(read_release(file), accept_licence=accept_licence)
    if release.publish is None:
        raise WrongUse("has no [publish] table", where=file, remedy="add repo or to as the target")
    check_key(release)
    with out.progress() as progress:
        if dry_run:
            _show_published(out, publish_dry_run(open_schedule(release, wanted=lambda _node: True), progress))
            return
        schedule = open_schedule(release, wanted=lambda _node: True, progress=progress)
        if schedule.states["publish"] == "done":
            schedule.requeue("publish")
        asking = can_ask() and not yes
        if asking and schedule.states["publish"] == "waits":
            # What would be replaced is known when all is made.
            making = open_schedule(release, progress=progress)
            with _executor([making], workers, dask, threads, progress) as executor:
                run_releases([making], executor, progress)
            schedule = open_schedule(release, wanted=lambda _node: True, progress=progress)
        if asking and schedule.states["publish"] == "ready":
            consent(lambda: _replaced(publish_dry_run(schedule, progress)), out, yes=False)
        with _executor([schedule], workers, dask, threads, progress) as executor:
            outcome = run_releases([schedule], executor, progress)
    if "publish" in schedule.found:
        _show_published(out, schedule.found["publish"]["data"]["targets"])
    _end(out, outcome)


def _replaced(targets: list[PublishedDict]) -> list[str]:
    lost = {"replace": "replaced", "remove": "removed"}
    return [
        f"{target['target']}: {change['path']} will be {lost[change['change']]}"
        for target in targets
        for change in target["changes"]
        if change["change"] in lost
    ]


def _show_published(out: Out, targets: list[PublishedDict]) -> None:
    """Print every file that is or would be published, with its size and what happens to it."""
    from rich.markup import escape
    from rich.table import Table

    for target in targets:
        table = Table("change", "bytes", "file", title=escape(_from_here(target["target"])), title_justify="left")
        for change in target["changes"]:
            table.add_row(escape(str(change["change"])), f"{change['size']:,}", escape(str(change["path"])))
        out.show(table)
        for question in target["questions"]:
            out.note(question)
    out.result({"targets": targets})


def _apart(releases: list[Any]) -> list[Any]:
    """Return the releases; ``WrongUse`` for two of one name or in one folder."""
    names = [release.name for release in releases]
    twice = next((release for release in releases if names.count(release.name) > 1), None)
    if twice is not None:
        raise WrongUse(f"two releases are called {twice.name}", where=twice.path, remedy="rename one of them")
    places = [release.out.resolve() for release in releases]
    shared = next((one for one in releases if places.count(one.out.resolve()) > 1), None)
    if shared is not None:
        remedy = "let [release] out name another folder in one of them"
        raise WrongUse(f"two releases would lie in {shared.out}", where=shared.path, remedy=remedy)
    return releases


@contextmanager
def _executor(
    schedules: Sequence[Schedule], workers: int | None, dask: str | None, threads: int | None, progress: Progress
) -> Iterator[Executor]:
    """Start the workers that the flags name: a Dask cluster, processes, or this process."""
    from strata_pack.release.dask_cluster import LOCAL, cluster
    from strata_pack.release.local_executor import in_process
    from strata_pack.release.process_pool import process_pool

    if dask is not None and dask != LOCAL and workers is not None:
        raise WrongUse("--workers is for this machine; a Dask scheduler has its own workers", where=f"--dask {dask}")
    if dask is not None:
        folders = [schedule.release.out for schedule in schedules]
        opened = cluster(dask, folders, progress, workers=workers, threads=threads)
    else:
        opened = in_process(progress, threads) if workers is None else process_pool(workers, progress, threads)
    with opened as executor:
        yield executor


def _end(out: Out, outcome: Outcome) -> None:
    for schedule in outcome.schedules:
        _show_packs(out, schedule)
    made, failed = outcome.count("made"), outcome.count("failed")
    done = outcome.count("done")
    out.line(
        f"{made} done, {done} already done, {failed} failed"
        if made or failed
        else f"nothing to do: {done} already done"
    )
    for schedule in outcome.schedules:
        for node, failure in schedule.failures.items():
            out.note(f"strata-pack: {schedule.release.name} {node}: {failure.sentence}")
        if "report" in schedule.found:
            out.line(_from_here(str(schedule.release.out / "report.html")))
    out.result({"releases": [_schedule_dict(schedule) for schedule in outcome.schedules]})
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)


def _from_here(path: str) -> str:
    """Return ``path`` relative to the current folder if it lies in it."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def _schedule_dict(schedule: Schedule) -> dict[str, Any]:
    nodes = [
        {
            "node": node,
            "state": MARKS[state],
            "why": schedule.reason(node) or None,
            "seconds": schedule.found[node]["seconds"] if node in schedule.found else None,
        }
        for node, state in schedule.states.items()
    ]
    packs = {
        pack.name: schedule.found[f"gates:{pack.name}"]["data"]
        for pack in schedule.release.packs
        if f"gates:{pack.name}" in schedule.found
    }
    return {"release": schedule.release.name, "commit": schedule.source["commit"], "nodes": nodes, "packs": packs}


def _show_schedule(out: Out, schedule: Schedule) -> None:
    from rich.markup import escape
    from rich.table import Table

    source = schedule.source
    commit = "" if source["commit"] is None else f" at {source['commit'][:12]}"
    out.line(f"{schedule.release.name}: {source['text']}{commit}, {source['format']}")
    table = Table("node", "state", "why", box=None, pad_edge=False)
    for node, state in schedule.states.items():
        table.add_row(
            escape(node), MARKS[state], escape(schedule.reason(node) if state not in ("done", "made") else "")
        )
    out.show(table)
    todo = sum(state in ("ready", "waits") for state in schedule.states.values())
    out.line(f"{todo} of {len(schedule.states)} nodes to do" if todo else "nothing to do")


def _show_packs(out: Out, schedule: Schedule) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("pack", "MB", "bits/weight", "KL mean", "gates")
    for pack in schedule.release.packs:
        built, compared, judged = (schedule.found.get(f"{kind}:{pack.name}") for kind in ("pack", "kl", "gates"))
        rows = [] if judged is None else judged["data"]["gates"]
        failed = [f"{row['gate']}: {row['detail']}" for row in rows if row["status"] in ("failed", "error")]
        said = "; ".join(failed) if failed else "passed" if judged is not None else "not judged"
        table.add_row(
            escape(pack.name),
            "" if built is None else f"{built['data']['size'] / 1e6:.1f}",
            "" if built is None else f"{built['data']['bits_per_weight']:.2f}",
            "" if compared is None else f"{compared['data']['judged']['kl_mean']:.6f}",
            escape(said),
        )
    out.show(table)
