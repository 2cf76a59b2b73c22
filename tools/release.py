"""Make a release: check, tag, build both wheels, and run each of them in an empty environment.

    python tools/release.py 0.2.0            # everything
    python tools/release.py 0.2.0 --check    # only what must be true before: version, changelog, clean tree

The version stands in ``strata_pack/__init__.py`` alone; the changelog must have a section of it with a date.
Nothing is pushed and nothing is published: the last line says how.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]

TRIALS = {
    "strata_pack-": ["-m", "strata_pack", "--version"],
    "strata_parser-": ["-c", "import strata_parser as p; print(p.OutputParser(thinking=False).feed('text'))"],
}
"""What is run of each wheel, by the beginning of its name."""


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    """Run a program and return what it prints; leave with its message if it fails."""
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"release: {' '.join(map(str, words))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def problems(version: str) -> list[str]:
    """Return what must be mended before ``version`` can be released."""
    found = []
    if not re.fullmatch(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?", version):
        found.append(f"{version!r} is not a version such as 1.2.3 or 1.2.3rc1")
    source = (ROOT / "strata_pack/__init__.py").read_text(encoding="utf-8")
    written = re.search(r'^__version__ = "([^"]+)"', source, re.MULTILINE)
    if written is None or written[1] != version:
        found.append(f"strata_pack/__init__.py says {written[1] if written else 'no version'}, not {version}")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[?{re.escape(version)}\]? - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD'")
    if run("git", "status", "--porcelain"):
        found.append("the working tree has changes that are not committed")
    return found


def try_wheel(wheel: Path) -> None:
    """Install ``wheel`` with its dependencies into an empty environment and run it there."""
    trial = next(words for start, words in TRIALS.items() if wheel.name.startswith(start))
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin/python")
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=Path(folder))
        print(f"{wheel.name}: {run(python, *trial, cwd=Path(folder))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--check", action="store_true", help="check only")
    options = parser.parse_args()
    if found := problems(options.version):
        sys.exit("release: " + "\nrelease: ".join(found))
    if options.check:
        return
    tag = f"v{options.version}"
    if run("git", "tag", "--list", tag):
        sys.exit(f"release: the tag {tag} exists already")
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    run("make", "wheels")
    wheels = sorted(dist.glob("*.whl"))
    if len(wheels) != len(TRIALS):
        sys.exit(f"release: {len(TRIALS)} wheels are expected, not {[wheel.name for wheel in wheels]}")
    for wheel in wheels:
        try_wheel(wheel)
    run("git", "tag", "--annotate", tag, "--message", f"strata-pack {options.version}")
    print(f"{tag} is tagged and dist/ holds its wheels; publish with: git push origin {tag}, then upload dist/*.whl")


if __name__ == "__main__":
    main()
