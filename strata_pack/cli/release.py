"""``strata-pack release``: builds, checks and publishes many packs from one file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata_pack.cli.confirm import DryRun
from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags
from strata_pack.errors import WrongUse

if TYPE_CHECKING:
    from strata_pack.progress import Progress
    from strata_pack.release.board import Board
    from strata_pack.release.crew import Crew
    from strata_pack.release.run import Outcome

app = typer.Typer(
    help="Build, check and publish many packs from one file, on one machine or several.", no_args_is_help=True
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
    *,
    out: Out,
) -> None:
    """Inspect a source and write a commented release file for it; no weights are downloaded."""
    from strata_pack.files import write_atomic
    from strata_pack.outputs import check_file_output, check_outputs
    from strata_pack.release.init import look_at, release_text

    check_outputs([file], [source])
    check_file_output(file, force=force)
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
    from strata_pack.release.file import read_release
    from strata_pack.release.run import open_board

    with out.progress() as progress:
        board = open_board(read_release(file), update=update, progress=progress)
    _show_board(out, board)
    out.result(_board_dict(board))


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
    from strata_pack.release.file import read_release
    from strata_pack.release.run import open_board, run_releases

    releases = _named_once([read_release(file) for file in files])
    if split_tensors and len(releases) > 1:
        raise WrongUse("--split-tensors is for one release at a time")
    with out.progress() as progress:
        boards = [open_board(release, update=update, progress=progress) for release in releases]
        if all(board.ended for board in boards):
            outcome = run_releases(boards, None, progress)
        else:
            with _crew(boards, workers, dask, threads, progress) as crew:
                if split_tensors:
                    from strata_pack.release.spread import run_spread

                    outcome = run_spread(boards[0], crew, progress)
                else:
                    outcome = run_releases(boards, crew, progress)
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

    Exit code 1 if there is something to do.
    """
    from strata_pack.release.file import read_release
    from strata_pack.release.lock import read_lock
    from strata_pack.release.run import open_board
    from strata_pack.release.status import changes

    release = read_release(file)
    board = open_board(release)
    found = [] if offline else changes(release, read_lock(release.lock_path))
    _show_board(out, board)
    for change in found:
        out.line(f"{change.what}: {change.sentence}")
    looked = board.source["commit"] is not None or (release.publish is not None and release.publish.repo is not None)
    if looked and not found and not offline:
        out.line("the Hub matches the lock file")
    finished = board.ended and not board.failures
    out.result({**_board_dict(board), "changes": [change.to_dict() for change in found]})
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
    *,
    out: Out,
) -> None:
    """Run everything that is not done yet, and publish every pack that passes its gates."""
    from strata_pack.release.file import read_release
    from strata_pack.release.publishing import rehearse
    from strata_pack.release.run import open_board, run_releases

    release = replace(read_release(file), accept_licence=accept_licence)
    if release.publish is None:
        raise WrongUse("has no [publish] table", where=file, remedy="add repo or to as the target")
    with out.progress() as progress:
        if dry_run:
            _show_published(out, rehearse(open_board(release, wanted=lambda _node: True), progress))
            return
        board = open_board(release, wanted=lambda _node: True, progress=progress)
        if board.states["publish"] == "done":
            board.again("publish")
        with _crew([board], workers, dask, threads, progress) as crew:
            outcome = run_releases([board], crew, progress)
    if "publish" in board.found:
        _show_published(out, board.found["publish"]["data"]["targets"])
    _end(out, outcome)


def _show_published(out: Out, targets: list[dict[str, Any]]) -> None:
    """Print every file that is or would be published, with its size and what happens to it."""
    from rich.markup import escape
    from rich.table import Table

    for target in targets:
        table = Table("change", "bytes", "file", title=escape(target["target"]), title_justify="left")
        for change in target["changes"]:
            table.add_row(escape(str(change["change"])), f"{change['size']:,}", escape(str(change["path"])))
        out.show(table)
        for question in target["questions"]:
            out.note(question)
    out.result({"targets": targets})


def _named_once(releases: list[Any]) -> list[Any]:

    names = [release.name for release in releases]
    twice = next((release for release in releases if names.count(release.name) > 1), None)
    if twice is not None:
        raise WrongUse(f"two releases are called {twice.name}", where=twice.path, remedy="rename one of them")
    return releases


@contextmanager
def _crew(
    boards: Sequence[Board], workers: int | None, dask: str | None, threads: int | None, progress: Progress
) -> Iterator[Crew]:
    """Start the workers that the flags name: a Dask cluster, processes, or this process."""
    from strata_pack.release.cluster import LOCAL, cluster
    from strata_pack.release.this_process import alone
    from strata_pack.release.workers import processes

    if dask is not None and dask != LOCAL and workers is not None:
        raise WrongUse("--workers is for this machine; a Dask scheduler has its own workers", where=f"--dask {dask}")
    if dask is not None:
        folders = [board.release.out for board in boards]
        opened = cluster(dask, folders, progress, workers=workers, threads=threads)
    else:
        opened = alone(progress, threads) if workers is None else processes(workers, progress, threads)
    with opened as crew:
        yield crew


def _end(out: Out, outcome: Outcome) -> None:
    for board in outcome.boards:
        _show_packs(out, board)
    made, failed = outcome.count("made"), outcome.count("failed")
    done = outcome.count("done")
    out.line(
        f"{made} done, {done} already done, {failed} failed"
        if made or failed
        else f"nothing to do: {done} already done"
    )
    for board in outcome.boards:
        for node, failure in board.failures.items():
            out.note(f"strata-pack: {board.release.name} {node}: {failure.sentence}")
        if "report" in board.found:
            out.line(f"{board.release.out / 'report.html'}")
    out.result({"releases": [_board_dict(board) for board in outcome.boards]})
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)


def _board_dict(board: Board) -> dict[str, Any]:
    nodes = [
        {
            "node": node,
            "state": MARKS[state],
            "why": board.why(node) or None,
            "seconds": board.found[node]["seconds"] if node in board.found else None,
        }
        for node, state in board.states.items()
    ]
    packs = {
        pack.name: board.found[f"gates:{pack.name}"]["data"]
        for pack in board.release.packs
        if f"gates:{pack.name}" in board.found
    }
    return {"release": board.release.name, "commit": board.source["commit"], "nodes": nodes, "packs": packs}


def _show_board(out: Out, board: Board) -> None:
    from rich.markup import escape
    from rich.table import Table

    source = board.source
    commit = "" if source["commit"] is None else f" at {source['commit'][:12]}"
    out.line(f"{board.release.name}: {source['text']}{commit}, {source['format']}")
    table = Table("node", "state", "why", box=None, pad_edge=False)
    for node, state in board.states.items():
        table.add_row(escape(node), MARKS[state], escape(board.why(node) if state not in ("done", "made") else ""))
    out.show(table)
    todo = sum(state in ("ready", "waits") for state in board.states.values())
    out.line(f"{todo} of {len(board.states)} nodes to do" if todo else "nothing to do")


def _show_packs(out: Out, board: Board) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("pack", "MB", "bits/weight", "KL mean", "gates")
    for pack in board.release.packs:
        built, compared, judged = (board.found.get(f"{kind}:{pack.name}") for kind in ("pack", "kl", "gates"))
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
