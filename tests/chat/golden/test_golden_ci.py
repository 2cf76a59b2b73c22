"""The GitHub action and the pre-commit hooks, run as a CI runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
BIN = Path(sys.executable).parent

TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content or [] %}{{ part.text }}{% endfor %}{% endif %}{{ '\\n' }}{% endfor %}"
)
CASES = [{"name": "hi", "messages": [{"role": "user", "content": "Hi"}], "kwargs": {}, "expected": "Hi\n"}]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository of somebody who ships a template."""
    folder = tmp_path / "project"
    (folder / "golden").mkdir(parents=True)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "golden" / "golden.json").write_text(json.dumps(CASES))
    return folder


def _break(project: Path) -> None:
    (project / "chat_template.jinja").write_text(TEMPLATE.replace("{{ '\\n' }}", "{{ ' \\n' }}"))


class Runner:
    """Runs the steps of a composite action: expressions replaced, environment files honoured, bash as GitHub does."""

    def __init__(self, project: Path, temp: Path, inputs: dict[str, str], path: str, base: str = "") -> None:
        self.project = project
        self.inputs = {name: given.get("default", "") for name, given in ACTION["inputs"].items()} | inputs
        self.context = {
            "github.action_path": str(ROOT),
            "runner.temp": str(temp),
            "github.event.pull_request.base.sha": base,
        }
        self.files = {name: temp / name for name in ("GITHUB_OUTPUT", "GITHUB_PATH")}
        for file in self.files.values():
            file.write_text("")
        self.path = path

    def _expression(self, match: re.Match[str]) -> str:
        for term in match[1].split("||"):
            name = term.strip()
            value = self.inputs[name.removeprefix("inputs.")] if name.startswith("inputs.") else self.context[name]
            if value:
                return value
        return ""

    def run(self, step_id: str) -> subprocess.CompletedProcess[str]:
        step: dict[str, Any] = next(step for step in ACTION["runs"]["steps"] if step["id"] == step_id)
        assert step["shell"] == "bash"
        given = {name: re.sub(r"\$\{\{(.*?)\}\}", self._expression, value) for name, value in step["env"].items()}
        added = self.files["GITHUB_PATH"].read_text().split()
        environment = {
            **os.environ,
            **given,
            "PATH": os.pathsep.join([*added, self.path]),
            "GITHUB_ACTIONS": "true",
            **{name: str(file) for name, file in self.files.items()},
        }
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        return subprocess.run(command, cwd=self.project, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def with_this_tool(project: Path, tmp_path: Path) -> Runner:
    inputs = {"target": "chat_template.jinja", "golden": "golden", "engines": "jinja2 minijinja"}
    return Runner(project, tmp_path, inputs, f"{BIN}{os.pathsep}{os.environ['PATH']}")


def test_action_passes_where_the_cases_hold(with_this_tool: Runner) -> None:
    done = with_this_tool.run("check")
    assert (done.returncode, "::error" in done.stdout) == (0, False), done.stderr


def test_action_fails_with_an_annotation_where_a_case_differs(with_this_tool: Runner) -> None:
    _break(with_this_tool.project)
    done = with_this_tool.run("check")
    assert done.returncode == 1
    assert "::error file=chat_template.jinja,title=golden jinja2::golden: hi: differs at character 2" in done.stdout


def test_action_leaves_junit_and_sarif_where_its_outputs_say(with_this_tool: Runner) -> None:
    _break(with_this_tool.project)
    with_this_tool.run("check")
    outputs = dict(line.split("=") for line in with_this_tool.files["GITHUB_OUTPUT"].read_text().splitlines())
    cases = list(ET.parse(with_this_tool.project / outputs["junit"]).iter("testcase"))
    assert len(cases) == 2
    assert len(json.loads((with_this_tool.project / outputs["sarif"]).read_text())["runs"][0]["results"]) == 2


def test_action_gives_an_input_with_shell_syntax_to_the_tool_as_it_is(project: Path, tmp_path: Path) -> None:
    runner = Runner(project, tmp_path, {"target": "$(touch hacked).jinja"}, f"{BIN}{os.pathsep}{os.environ['PATH']}")
    assert runner.run("check").returncode == 2
    assert not (project / "hacked").exists()


@pytest.mark.slow
@pytest.mark.registry
def test_action_installs_the_tool_and_checks_with_it(project: Path, tmp_path: Path) -> None:
    runner = Runner(project, tmp_path, {"target": "chat_template.jinja", "golden": "golden"}, os.environ["PATH"])
    installed = runner.run("install")
    assert installed.returncode == 0, installed.stderr
    assert runner.run("check").returncode == 0


def _git(project: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=project, check=True, capture_output=True)


def _pull_request(project: Path, change: Callable[[Path], object]) -> str:
    """Commit the project, then ``change`` as a second commit; return the first."""
    _git(project, "init", "-q")
    _git(project, "add", ".")
    _git(project, "commit", "-qm", "base")
    base = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project, capture_output=True, text=True, check=True)
    change(project)
    _git(project, "add", "-A")
    _git(project, "commit", "-qm", "change", "--allow-empty")
    return base.stdout.strip()


CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "the template alone": (_break, True),
    "a new case": (lambda project: (project / "golden/more.json").write_text("[]"), True),
    "another expectation": (lambda project: (project / "golden/golden.json").write_text("[]"), False),
    "a case less": (lambda project: (project / "golden/golden.json").unlink(), False),
    "a case under another name": (
        lambda project: (project / "golden/golden.json").rename(project / "golden/x.json"),
        False,
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_action_refuses_a_pull_request_that_changes_golden_cases(project: Path, tmp_path: Path, kind: str) -> None:
    change, passes = CHANGES[kind]
    base = _pull_request(project, change)
    done = Runner(project, tmp_path, {}, os.environ["PATH"], base).run("unchanged")
    assert (done.returncode == 0) is passes, done.stdout + done.stderr
    assert ("::error file=golden/golden.json" in done.stdout) is not passes
    allowed = Runner(project, tmp_path, {"allow-golden-changes": "true"}, os.environ["PATH"], base).run("unchanged")
    assert allowed.returncode == 0


@pytest.mark.parametrize(
    ("base", "publish", "wanted"),
    [("", "true", ["publish"]), ("", "false", ["run"]), ("0" * 40, "true", ["run"])],
)
def test_action_publishes_a_release_but_never_from_a_pull_request(
    project: Path, tmp_path: Path, base: str, publish: str, wanted: list[str]
) -> None:
    tool = tmp_path / "bin/strata-pack"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\necho "$2 $3" >> {tmp_path}/called\n')
    tool.chmod(0o755)
    inputs = {"release": "release.toml", "publish": publish}
    path = f"{tool.parent}{os.pathsep}{os.environ['PATH']}"
    assert Runner(project, tmp_path, inputs, path, base).run("release").returncode == 0
    assert (tmp_path / "called").read_text().splitlines() == [f"{verb} release.toml" for verb in wanted]


def _pre_commit(project: Path, hook: dict[str, Any], home: Path) -> subprocess.CompletedProcess[str]:
    local = {"repos": [{"repo": "local", "hooks": [{**hook, "language": "system"}]}]}
    (project / ".pre-commit-config.yaml").write_text(yaml.safe_dump(local))
    _git(project, "init", "-q")
    _git(project, "add", ".")
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PRE_COMMIT_HOME": str(home)}
    command = [sys.executable, "-m", "pre_commit", "run", "--all-files", hook["id"]]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("hook_id", list(HOOKS))
def test_pre_commit_hook_passes_on_a_sound_template(project: Path, tmp_path: Path, hook_id: str) -> None:
    done = _pre_commit(project, HOOKS[hook_id], tmp_path / "home")
    assert (done.returncode, "Passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_pre_commit_hook_stops_a_template_that_broke_a_case(project: Path, tmp_path: Path) -> None:
    _break(project)
    done = _pre_commit(project, HOOKS["strata-pack-golden"], tmp_path / "home")
    assert done.returncode == 1
    assert "Failed" in done.stdout
    assert "differs at character 2" in done.stdout


@pytest.mark.slow
@pytest.mark.registry
def test_pre_commit_installs_the_hook_from_this_repository(project: Path, tmp_path: Path) -> None:
    _git(project, "init", "-q")
    _git(project, "add", ".")
    command = [
        sys.executable,
        "-m",
        "pre_commit",
        "try-repo",
        str(ROOT),
        "strata-pack-golden",
        "--ref",
        "HEAD",
        "--all-files",
    ]
    environment = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
