"""A package index on loopback (the simple API over a folder of wheels), and wheels made on the spot."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distribution
from pathlib import Path


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serve_index(folder: Path) -> Iterator[str]:
    """Serve the wheels in ``folder`` and yield the index's URL."""
    pages: dict[str, list[str]] = {}
    for wheel in sorted(folder.glob("*.whl")):
        package = wheel.name.split("-")[0].replace("_", "-")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        pages.setdefault(package, []).append(f'<a href="/{wheel.name}#sha256={digest}">{wheel.name}</a>')
    for package, links in pages.items():
        page = folder / "simple" / package / "index.html"
        page.parent.mkdir(parents=True)
        page.write_text(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/simple"
        server.shutdown()
        thread.join()


def make_wheel(folder: Path, package: str, version: str, files: Mapping[str, str | Path], tag: str) -> Path:
    """Write a wheel of ``files`` (path in it -> text, or the file that it is) and return it."""
    stem = f"{package.replace('-', '_')}-{version}"
    path = folder / f"{stem}-{tag}.whl"
    info = {
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
        f"{stem}.dist-info/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tag}\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, **info}.items():
            if isinstance(content, Path):
                archive.write(content, name)
            else:
                archive.writestr(name, content)
        record = "".join(f"{name},,\n" for name in [*files, *info, f"{stem}.dist-info/RECORD"])
        archive.writestr(f"{stem}.dist-info/RECORD", record)
    return path


def installed_as_wheel(folder: Path, package: str, version: str) -> Path:
    """Pack what is installed of ``package`` into a wheel that calls itself ``version``."""
    found = distribution(package)
    assert found.files is not None
    inside = [file for file in found.files if ".dist-info" not in file.parts[0] and file.suffix != ".pyc"]
    files = {file.as_posix(): Path(str(found.locate_file(file))) for file in inside if ".." not in file.parts}
    tag = next(line.partition(": ")[2] for line in str(found.read_text("WHEEL")).splitlines() if line[:4] == "Tag:")
    return make_wheel(folder, package, version, files, tag)
