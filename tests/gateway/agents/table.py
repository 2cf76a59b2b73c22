"""The agents: where they come from, how they are told of the gateway, and what their tools are called."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.gateway.agents.story import COMMAND, TASK, Call

MODEL = "strata-test"
PLATFORM = f"linux-{'arm64' if platform.machine() == 'aarch64' else 'x64'}"
ASK = f"{TASK}: run the command, look at the picture, then say that you are done."
AGAIN = f"{TASK}: go on."


@dataclass(frozen=True)
class Place:
    """Where one run takes place: the gateway's URL, the agent's own home, and the folder with its work."""

    url: str
    home: Path
    work: Path

    @property
    def picture(self) -> str:
        return str(self.work / "picture.png")


@dataclass(frozen=True)
class Agent:
    """One agent.

    ``program`` is a path below node_modules, run by Node if it is a script; ``files`` are written into the home before
    the first run; ``first`` and ``again`` are the arguments of a new session and of one that goes on, ``setup`` of
    a run before both.
    """

    name: str
    package: str
    version: str
    api: str
    program: str
    shell: Call
    look: Callable[[Place], Call]
    first: tuple[str, ...]
    again: tuple[str, ...]
    files: Callable[[Place], Mapping[str, str]] = lambda _: {}
    environment: Callable[[Place], Mapping[str, str]] = lambda _: {}
    setup: Callable[[Place], tuple[str, ...]] | None = None
    is_script: bool = True


def _codex_files(place: Place) -> Mapping[str, str]:
    return {
        ".codex/config.toml": f"""model = "{MODEL}"
model_provider = "strata"
[model_providers.strata]
name = "strata"
base_url = "{place.url}/v1"
wire_api = "responses"
"""
    }


def _opencode_files(place: Place) -> Mapping[str, str]:
    modalities = {"input": ["text", "image"], "output": ["text"]}
    model = {"name": MODEL, "attachment": True, "tool_call": True, "modalities": modalities}
    options = {"baseURL": f"{place.url}/v1", "apiKey": "none"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {MODEL: model}}
    config = {"provider": {"strata": provider}, "permission": {"*": "allow"}, "autoupdate": False, "share": "disabled"}
    return {".config/opencode/opencode.json": json.dumps(config)}


def _pi_files(place: Place) -> Mapping[str, str]:
    model = {"id": MODEL, "input": ["text", "image"], "reasoning": True}
    provider = {"baseUrl": f"{place.url}/v1", "api": "openai-completions", "apiKey": "none", "models": [model]}
    return {".pi/agent/models.json": json.dumps({"providers": {"strata": provider}})}


def _continue_files(place: Place) -> Mapping[str, str]:
    return {
        ".continue/config.yaml": f"""name: strata
version: 1.0.0
schema: v1
models:
  - name: {MODEL}
    provider: openai
    model: {MODEL}
    apiBase: {place.url}/v1
    apiKey: none
    roles: [chat]
    capabilities: [tool_use, image_input]
"""
    }


def _claude_environment(place: Place) -> Mapping[str, str]:
    return {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
    }


def _openai_environment(place: Place) -> Mapping[str, str]:
    return {"OPENAI_BASE_URL": f"{place.url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": MODEL}


AGENTS = (
    Agent(
        "claude-code",
        f"@anthropic-ai/claude-code-{PLATFORM}",
        "2.1.332",
        "messages",
        f"@anthropic-ai/claude-code-{PLATFORM}/claude",
        Call("Bash", {"command": COMMAND, "description": "Run it"}),
        lambda place: Call("Read", {"file_path": place.picture}),
        ("-p", ASK, "--dangerously-skip-permissions"),
        ("-p", AGAIN, "--continue", "--dangerously-skip-permissions"),
        environment=_claude_environment,
        is_script=False,
    ),
    Agent(
        "codex",
        "@openai/codex",
        "0.171.0",
        "responses",
        "@openai/codex/bin/codex.js",
        Call("exec_command", {"cmd": COMMAND}),
        lambda place: Call("view_image", {"path": place.picture}),
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", ASK),
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "resume", "--last", AGAIN),
        files=_codex_files,
    ),
    Agent(
        "opencode",
        f"opencode-{PLATFORM}",
        "1.18.33",
        "chat",
        f"opencode-{PLATFORM}/bin/opencode",
        Call("bash", {"command": COMMAND, "description": "Run it"}),
        lambda place: Call("read", {"filePath": place.picture}),
        ("run", "-m", f"strata/{MODEL}", ASK),
        ("run", "-m", f"strata/{MODEL}", "--continue", AGAIN),
        files=_opencode_files,
        is_script=False,
    ),
    Agent(
        "qwen-code",
        "@qwen-code/qwen-code",
        "0.24.4",
        "chat",
        "@qwen-code/qwen-code/cli-entry.js",
        Call("run_shell_command", {"command": COMMAND, "is_background": "false"}),
        lambda place: Call("read_file", {"file_path": place.picture}),
        ("--auth-type", "openai", "--yolo", "-p", ASK),
        ("--auth-type", "openai", "--yolo", "--continue", "-p", AGAIN),
        environment=_openai_environment,
    ),
    Agent(
        "cline",
        f"@cline/cli-{PLATFORM}",
        "3.0.65",
        "chat",
        f"@cline/cli-{PLATFORM}/bin/cline",
        Call("run_commands", {"commands": json.dumps([COMMAND])}),
        lambda place: Call("read_files", {"files": json.dumps([{"path": place.picture}])}),
        (ASK,),
        (AGAIN,),
        setup=lambda place: ("auth", "-p", "openai", "-k", "none", "-m", MODEL, "-b", f"{place.url}/v1"),
        is_script=False,
    ),
    Agent(
        "pi",
        "@mariozechner/pi-coding-agent",
        "0.73.1",
        "chat",
        "@mariozechner/pi-coding-agent/dist/cli.js",
        Call("bash", {"command": COMMAND}),
        lambda place: Call("read", {"path": place.picture}),
        ("--provider", "strata", "--model", MODEL, "--offline", "-p", ASK),
        ("--provider", "strata", "--model", MODEL, "--offline", "--continue", "-p", AGAIN),
        files=_pi_files,
    ),
    Agent(
        "continue",
        "@continuedev/cli",
        "1.5.47",
        "chat",
        "@continuedev/cli/dist/cn.js",
        Call("Bash", {"command": COMMAND}),
        lambda place: Call("Read", {"filepath": place.picture}),
        ("--config", "~/.continue/config.yaml", "--auto", "-p", ASK),
        ("--config", "~/.continue/config.yaml", "--auto", "--resume", "-p", AGAIN),
        files=_continue_files,
        environment=lambda _: {"CONTINUE_TELEMETRY_ENABLED": "0"},
    ),
)
