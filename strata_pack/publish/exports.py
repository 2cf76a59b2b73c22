"""Export a pack for other programs: the file that each reads, which makes it use the pack's chat template.

The weights are not copied, except into an OCI layout. Sources: Ollama's Modelfile reference, the model.yaml
of LM Studio (modelyaml.org), llama-swap's configuration, and ``oci`` for the last.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml  # type: ignore[import-untyped]

from strata_pack.chat.render.template import read_template
from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import write_atomic
from strata_pack.llama.memory import OVERHEAD, kv_cache_bytes
from strata_pack.outputs import check_file_output, check_outputs
from strata_pack.pack.layout import Pack
from strata_pack.progress import Progress, Silent
from strata_pack.publish.folder import check_outside
from strata_pack.publish.oci import oci_changes, oci_items, write_oci
from strata_pack.suggest import unknown
from strata_pack.weights.gguf.file import GgufFile, MetaValue
from strata_pack.weights.source import is_repo_id

Program = Literal["ollama", "lmstudio", "llama-swap", "oci"]
TemplateMode = Literal["auto", "template", "raw"]

RENDERED_BY_OLLAMA = frozenset({"qwen35", "qwen35moe", "qwen3next", "qwen4exp"})
"""Architectures whose prompts Ollama renders by itself and ignores the GGUF's template (Qwen3.5 and later)."""

SAMPLING = {
    **{name: name for name in ("top_k", "top_p", "min_p")},
    "temp": "temperature",
    "penalty_repeat": "repeat_penalty",
}
"""Ollama's names for the GGUF's keys ``general.sampling.*``."""

CONTEXT = 8192
"""Context in tokens for which LM Studio is given the memory need."""


@dataclass(frozen=True)
class ExportOptions:
    """``repo`` is where the pack is published (for LM Studio); ``context`` in tokens, None: the server's own choice."""

    repo: str | None = None
    context: int | None = None
    template: TemplateMode = "auto"
    force: bool = False


@dataclass(frozen=True)
class Exported:
    """The written files, and the commands to use them."""

    files: tuple[Path, ...]
    next_steps: tuple[str, ...]


def export(
    program: Program, path: Path, out: Path, options: ExportOptions | None = None, progress: Progress | None = None
) -> Exported:
    """Write the files that ``program`` needs to run the pack in ``path`` into the folder ``out``.

    Raises ``WrongUse`` for a file that exists (unless ``force``), ``BadInput`` if ``path`` is no pack.
    """
    options = options or ExportOptions()
    pack = Pack.open(path)
    if options.repo is not None and not is_repo_id(options.repo):
        raise BadInput("is not a valid hub id", where=options.repo, remedy="write org/name")
    if program == "oci":
        check_outside([pack], out)
        items = oci_items([pack], out)
        write_oci(out, items, oci_changes(items, out), progress or Silent())
        place = shlex.quote(str(out))
        return Exported(
            (out,), (f"docker model package --from-oci {place} NAME", f"skopeo copy oci:{place} docker://NAME")
        )
    if out.exists() and not out.is_dir():
        raise WrongUse("is not a folder", where=out, remedy="choose another one")
    name, write, then = _PROGRAMS[program]
    target = out / name
    check_outside([pack], out)
    check_outputs([target], [pack.path])
    check_file_output(target, force=options.force)
    facts = _Facts.of(pack, out.absolute(), options)
    write_atomic(target, write(facts).encode())
    return Exported((target,), then(facts, target))


def exported_file(program: Program, out: Path) -> Path | None:
    """Return the file that ``export`` writes into ``out``; ``None`` for an OCI layout, which is only added to."""
    return None if program == "oci" else out / _PROGRAMS[program][0]


@dataclass(frozen=True)
class _Facts:
    """Facts of a pack for the export formats."""

    pack: Pack
    out: Path
    options: ExportOptions
    metadata: Mapping[str, MetaValue]

    @classmethod
    def of(cls, pack: Pack, out: Path, options: ExportOptions) -> _Facts:
        with GgufFile.open(pack.model_files[0]) as gguf:
            metadata = {key: value for key, value in gguf.metadata.items() if not _is_big(key)}
        return cls(pack, out, options, metadata)

    @property
    def name(self) -> str:
        return self.pack.manifest["model"]["name"]

    @property
    def architecture(self) -> str:
        return self.pack.manifest["model"]["architecture"]

    @property
    def size(self) -> int:
        files = self.pack.manifest["model"]["files"]
        return sum(entry["size"] for entry in self.pack.manifest["files"] if entry["path"] in files)

    def value(self, key: str) -> Any:
        found = self.metadata.get(key)
        return None if found is None else found.value

    def relative(self, path: Path) -> str:
        """Return ``path`` as seen from the folder of the file that is written."""
        found = Path(os.path.relpath(path, self.out)).as_posix()
        return found if found.startswith(".") else f"./{found}"

    @property
    def end_of_turn(self) -> str | None:
        """The token that ends a turn, by its text."""
        number, tokens = self.value("tokenizer.ggml.eos_token_id"), None
        with GgufFile.open(self.pack.model_files[0]) as gguf:
            tokens = gguf.metadata.get("tokenizer.ggml.tokens")
            known = tokens is not None and isinstance(number, int) and 0 <= number < len(tokens)
            return str(tokens.value[number]) if known and tokens is not None else None


def _is_big(key: str) -> bool:
    return key.startswith("tokenizer.ggml.") and not key.endswith("_id")


def _modelfile(facts: _Facts) -> str:
    pack, lines = facts.pack, [f"# {facts.name}, as strata-pack built it"]
    lines += [f"FROM {facts.relative(path)}" for path in pack.model_files]
    if pack.projector_path is not None:
        lines.append(f"FROM {facts.relative(pack.projector_path)}")
    if _mode(facts) == "raw":
        lines += [
            "# Ollama renders this architecture by itself: prompts are passed on as they come,",
            "# for a program that renders them with the pack's template (strata-pack serve).",
            'TEMPLATE """{{ .Prompt }}"""',
        ]
    else:
        lines.append("# No TEMPLATE, RENDERER or PARSER: the chat template in the GGUF counts.")
    if facts.end_of_turn:
        lines.append(f'PARAMETER stop "{_quoted(facts.end_of_turn)}"')
    for key, parameter in SAMPLING.items():
        value = facts.value(f"general.sampling.{key}")
        if isinstance(value, int | float):
            lines.append(f"PARAMETER {parameter} {value:.6g}")
    if facts.options.context is not None:
        lines.append(f"PARAMETER num_ctx {facts.options.context}")
    licence = pack.manifest["source"].get("license")
    if licence is not None:
        words = " ".join([licence.get("name", licence["id"]), licence.get("link", "")]).strip()
        lines.append(f'LICENSE """{_quoted(words)}"""')
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def _mode(facts: _Facts) -> str:
    asked = facts.options.template
    return asked if asked != "auto" else "raw" if facts.architecture in RENDERED_BY_OLLAMA else "template"


def _model_yaml(facts: _Facts) -> str:
    pack, key = facts.pack, facts.name.lower()
    base: Any = key  # a model that was imported
    if facts.options.repo is not None:
        user, _, repo = facts.options.repo.partition("/")
        source = {"type": "huggingface", "user": user, "repo": repo}
        base = [{"key": facts.options.repo.lower(), "sources": [source]}]
    template = read_template(pack.template_path)
    overrides: dict[str, Any] = {
        "domain": "llm",
        "architectures": [facts.architecture],
        "compatibilityTypes": ["gguf"],
        "paramsStrings": [_count_text(pack.manifest["model"]["parameters"])],
        "minMemoryUsageBytes": _memory(facts),
        "trainedForToolUse": "tools" in template,
        "vision": pack.projector_path is not None,
        "reasoning": "<think>" in template,
    }
    length = facts.value(f"{facts.architecture}.context_length")
    if isinstance(length, int):
        overrides["contextLengths"] = [length]
    prompt = {
        "type": "jinja",
        "jinjaPromptTemplate": {"template": template},
        "stopStrings": [facts.end_of_turn] if facts.end_of_turn else [],
    }
    value = {
        "model": f"strata-pack/{key}",
        "base": base,
        "metadataOverrides": overrides,
        "config": {"operation": {"fields": [{"key": "llm.prediction.promptTemplate", "value": prompt}]}},
    }
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=1 << 20))


def _llama_swap(facts: _Facts) -> str:
    pack = facts.pack
    command = ["llama-server", "--port", "${PORT}", "-m", str(pack.model_files[0]), "--jinja"]
    if pack.projector_path is not None:
        command += ["--mmproj", str(pack.projector_path)]
    if facts.options.context is not None:
        command += ["-c", str(facts.options.context)]
    spelled = " ".join(word if word == "${PORT}" else shlex.quote(word) for word in command)
    entry = {
        "cmd": spelled,
        "name": facts.name,
        "description": f"{facts.architecture}, {pack.manifest['recipe']['preset']}, built by strata-pack",
        "checkEndpoint": "/health",
    }
    return str(yaml.safe_dump({"models": {facts.name: entry}}, sort_keys=False, allow_unicode=True, width=1 << 20))


def _memory(facts: _Facts) -> int:
    values = {key: value.value for key, value in facts.metadata.items()}
    try:
        return facts.size + kv_cache_bytes(values, CONTEXT) + OVERHEAD
    except BadInput:
        return facts.size + OVERHEAD


def _count_text(parameters: int) -> str:
    for factor, letter in ((10**9, "B"), (10**6, "M")):
        if parameters >= factor:
            return f"{parameters / factor:.3g}{letter}"
    return str(parameters)


def _after_modelfile(facts: _Facts, target: Path) -> tuple[str, ...]:
    return (f"ollama create {shlex.quote(facts.name.lower())} -f {shlex.quote(str(target))}",)


def _after_model_yaml(facts: _Facts, target: Path) -> tuple[str, ...]:
    here = () if facts.options.repo else (f"lms import {shlex.quote(str(facts.pack.model_files[0]))}",)
    return (*here, f"lms push  # in {target.parent}, for the LM Studio Hub")


def _after_llama_swap(_facts: _Facts, target: Path) -> tuple[str, ...]:
    return (f"llama-swap -config {shlex.quote(str(target))}",)


_Then = Callable[[_Facts, Path], tuple[str, ...]]
_PROGRAMS: Mapping[str, tuple[str, Callable[[_Facts], str], _Then]] = {
    "ollama": ("Modelfile", _modelfile, _after_modelfile),
    "lmstudio": ("model.yaml", _model_yaml, _after_model_yaml),
    "llama-swap": ("llama-swap.yaml", _llama_swap, _after_llama_swap),
}
PROGRAMS = (*_PROGRAMS, "oci")


def find_program(text: str) -> Program:
    """Return the program of this name; ``WrongUse`` for another."""
    if text not in PROGRAMS:
        raise unknown("program", text, PROGRAMS)
    found: Program = text  # type: ignore[assignment]
    return found
