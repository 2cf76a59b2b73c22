"""Runs scenarios on a model's header: end-of-turn token, shape against the source, projector.

A grammar hides these mistakes, so no forced text shows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from strata_pack.chat.render.template import ChatTemplate, TemplateError
from strata_pack.errors import BadInput
from strata_pack.files import read_json_object
from strata_pack.pack.layout import Pack
from strata_pack.pack.paths import is_pack
from strata_pack.progress import Progress
from strata_pack.report import Check
from strata_pack.smoke.context import Target
from strata_pack.smoke.scenario import Impossible, Scenario
from strata_pack.weights.gguf.file import GgufFile, shard_paths
from strata_pack.weights.hub.cache import repo_folder

Metadata = Mapping[str, Any]

MARK = "endofthisturn"
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Tags inside a turn."""
_TAG = re.compile(r"\s*(<[^<>\s]+>|\[[^\[\]\s]+\])")

TOLERANCE = 1e-6
"""Allowed relative difference of two numbers that were stored in 32 bits."""


def read_header(model: Path) -> dict[str, Any]:
    """Return the metadata of a GGUF as plain values."""
    with GgufFile.open(model) as gguf:
        return {key: value.value for key, value in gguf.metadata.items()}


def token_text(header: Metadata, key: str) -> str | None:
    """Return the text of the token whose id is under ``tokenizer.ggml.<key>``, None if there is none."""
    number, tokens = header.get(f"tokenizer.ggml.{key}"), header.get("tokenizer.ggml.tokens")
    if not isinstance(number, int) or not isinstance(tokens, list):
        return None
    return str(tokens[number]) if 0 <= number < len(tokens) else f"number {number}, which the vocabulary lacks"


def open_template(target: Target, header: Metadata) -> ChatTemplate:
    """Return the template as a client of this vocabulary renders it."""
    bos, eos = token_text(header, "bos_token_id") or "", token_text(header, "eos_token_id") or ""
    return ChatTemplate(target.template or "", bos_token=bos, eos_token=eos)


def end_of_turn(target: Target, scenario: Scenario, _progress: Progress) -> Iterable[Check]:
    """Compare the GGUF's end-of-turn token with the one that the template writes after a turn."""
    assert target.model is not None
    header = read_header(target.model)
    messages = [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": MARK}]
    try:
        prompt = open_template(target, header).render(messages, add_generation_prompt=False)
    except TemplateError as error:
        raise Impossible(f"the template does not render one answer ({error})") from error
    written = _TAG.match(prompt, prompt.rfind(MARK) + len(MARK)) if MARK in prompt else None
    if written is None:
        raise Impossible("the template writes no token after a turn")
    end = written.group(1)
    named = {key: token_text(header, f"{key}_token_id") for key in ("eos", "eot", "eom")}
    wrong = [
        f"tokenizer.ggml.{key}_token_id is {text!r}, which ends no text: a server stops wherever the model writes it"
        for key, text in named.items()
        if text is not None and text != end and (text in TAGS or not _TAG.fullmatch(text))
    ]
    if end not in (named["eos"], named["eot"]):
        wrong.insert(
            0,
            f"the template ends a turn with {end}, the GGUF's end-of-text token (tokenizer.ggml.eos_token_id) is "
            f"{named['eos'] or 'not named'}: a server that uses it never stops",
        )
    yield Check(
        scenario.id,
        scenario.proves,
        "failed" if wrong else "passed",
        "; ".join(wrong) or f"both end a turn with {end}",
        where=str(target.model),
    )


def pre_tokenizer(target: Target, scenario: Scenario, _progress: Progress) -> Iterable[Check]:
    """Check that the GGUF of a byte-level BPE vocabulary names the rule by which text is split before the merges.

    Without it llama.cpp warns in its log and splits by a default rule.
    """
    assert target.model is not None
    header = read_header(target.model)
    if header.get("tokenizer.ggml.model") != "gpt2":
        raise Impossible("only vocabularies of byte-level BPE split text by a rule of their own")
    rule = header.get("tokenizer.ggml.pre")
    yield Check(
        scenario.id,
        scenario.proves,
        "passed" if rule else "failed",
        f"text is split by the rule of {rule}"
        if rule
        else "the GGUF does not name its pre-tokenizer (tokenizer.ggml.pre): llama.cpp splits text by a default rule, "
        "and the model reads tokens that it was not trained on",
        where=str(target.model),
    )


# The source


def find_source(target: Target) -> Path | None:
    """Return the source of the model: the named one, or its snapshot in the Hub cache."""
    if target.source is not None:
        return target.source
    if target.pack is None or not is_pack(target.pack):
        return None
    entry = Pack.open(target.pack).manifest["source"]
    if entry["kind"] != "hub" or not entry["repo"] or not entry["commit"]:
        return None
    snapshot = repo_folder(entry["repo"]) / "snapshots" / entry["commit"]
    return snapshot if (snapshot / "config.json").is_file() else None


def source_shape(target: Target, scenario: Scenario, _progress: Progress) -> Iterable[Check]:
    """Compare the header's positions (rope, context) and width with the source's configuration."""
    assert target.model is not None
    source = find_source(target)
    if source is None:
        raise Impossible("the source is not available; name it with --source")
    wanted, where = _shape_of(source)
    got = gguf_shape(read_header(target.model))
    wrong = [
        f"{name} is {got.get(name, 'missing')} in the GGUF and {value} in the source"
        for name, value in wanted.items()
        if not _same(got.get(name), value)
    ]
    yield Check(
        scenario.id,
        scenario.proves,
        "failed" if wrong else "passed",
        "; ".join(wrong) or f"{', '.join(wanted)} as in {where.name}",
        where=str(where),
        data={"gguf": got, "source": wanted},
    )


def _same(got: Any, wanted: Any) -> bool:
    if isinstance(got, (int, float)) and isinstance(wanted, (int, float)):
        return abs(got - wanted) <= TOLERANCE * max(abs(got), abs(wanted))
    return bool(got == wanted)


def _shape_of(source: Path) -> tuple[dict[str, Any], Path]:
    if source.is_dir() and is_pack(source):
        source = Pack.open(source).model_files[0]
    if source.is_file() and source.suffix == ".gguf":
        return gguf_shape(read_header(shard_paths(source)[0])), source
    config = source / "config.json" if source.is_dir() else source
    return config_shape(read_json_object(config)), config


ROPE, CONTEXT, WIDTH, LAYERS = "the rope base", "the context length", "the embedding width", "the number of layers"

_GGUF_KEYS = {ROPE: "rope.freq_base", CONTEXT: "context_length", WIDTH: "embedding_length", LAYERS: "block_count"}


def gguf_shape(header: Metadata) -> dict[str, Any]:
    """Return the shape in a GGUF's header."""
    prefix = header.get("general.architecture")
    found: dict[str, Any] = {name: header.get(f"{prefix}.{key}") for name, key in _GGUF_KEYS.items()}
    # The default of llama.cpp for a header without a rope base.
    found[ROPE] = found[ROPE] if found[ROPE] is not None else 10_000.0
    predicting = header.get(f"{prefix}.nextn_predict_layers")
    if isinstance(predicting, int) and isinstance(found[LAYERS], int):
        found[LAYERS] -= predicting  # the source does not count layers for multi-token prediction
    return {name: value for name, value in found.items() if value is not None}


def config_shape(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shape in a Hugging Face ``config.json``; newer ones have the rope parameters under one key."""
    nested = raw.get("text_config")
    text: Mapping[str, Any] = nested if isinstance(nested, dict) else raw
    gathered = text.get("rope_parameters")
    rope: Mapping[str, Any] = gathered if isinstance(gathered, dict) else {}
    found = {
        ROPE: rope.get("rope_theta", text.get("rope_theta")),
        CONTEXT: text.get("max_position_embeddings"),
        WIDTH: text.get("hidden_size"),
        LAYERS: text.get("num_hidden_layers"),
    }
    return {name: value for name, value in found.items() if isinstance(value, (int, float))}


# The projector


def projector(target: Target, scenario: Scenario, _progress: Progress) -> Iterable[Check]:
    """Check the projectors next to the model: each must be intact and of the model's embedding width."""
    assert target.model is not None
    found = projector_files(target)
    if not found:
        raise Impossible("there is no projector with this model")
    header = read_header(target.model)
    width = header.get(f"{header.get('general.architecture')}.embedding_length")
    for path in found:
        try:
            widths = dict(projector_widths(path))
        except BadInput as error:
            yield Check(f"{scenario.id}/{path.name}", scenario.proves, "failed", str(error), where=str(path))
            continue
        wrong = [f"{name} is {value}" for name, value in widths.items() if value != width]
        yield Check(
            f"{scenario.id}/{path.name}",
            scenario.proves,
            "failed" if wrong or not widths else "passed",
            f"the model's embedding width is {width}, but {', '.join(wrong)}"
            if wrong
            else f"whole, and of the model's embedding width {width}"
            if widths
            else "has no width, so llama.cpp does not load it as a projector",
            where=str(path),
        )


def projector_files(target: Target) -> list[Path]:
    """Return the pack's projector, and those in the model's folder by llama.cpp's naming convention."""
    assert target.model is not None
    packed = Pack.open(target.pack).projector_path if target.pack is not None else None
    beside = {path for path in target.model.parent.glob("*.gguf") if "mmproj" in path.name.lower()}
    return sorted((beside | ({packed} if packed is not None else set())) - {target.model})


_LINEAR = re.compile(r"mm\.(\d+)\.weight")


def projector_widths(path: Path) -> Iterator[tuple[str, int]]:
    """Yield every width of a projector's output embeddings, with its name in the file.

    Raises ``BadInput`` if the file is damaged, truncated or not a projector. In the first projectors (kind ``mlp``) the
    key is a width inside the image encoder, and only the last layer has the output width.
    """
    with GgufFile.open(path) as gguf:
        if gguf.text("general.architecture") != "clip":
            raise BadInput("is not a projector: its architecture is not clip", where=path)
        linear = {
            int(match.group(1)): tensor.shape[1]
            for tensor in gguf.tensors
            if (match := _LINEAR.fullmatch(tensor.name)) and len(tensor.shape) == 2
        }
        if linear:
            last = max(linear)
            yield f"the output of mm.{last}.weight", linear[last]
        if gguf.text("clip.projector_type") != "mlp" or not linear:
            for kind in ("vision", "audio"):
                width = gguf.integer(f"clip.{kind}.projection_dim")
                if width is not None:
                    yield f"clip.{kind}.projection_dim", width
