"""Checks, without loading weights, whether a header has what llama.cpp needs.

The shapes of plain attention and feed-forward layers follow from the header's numbers. All other layers are compared
with each other: every layer of a kind must have the tensors, in the shapes, that most layers of that kind have.
Source: ``llama-model.cpp``, ``llama-hparams.cpp`` and ``llama-vocab.cpp`` of llama.cpp.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from strata_pack.chat.render.template import ChatTemplate
from strata_pack.errors import BadInput, StrataError
from strata_pack.files import read_bytes
from strata_pack.weights.gguf.file import MetaValue, TensorInfo
from strata_pack.weights.quantize.presets import PRESETS, fallback
from strata_pack.weights.tokenizer.pre import contradicted_pre

TOKENIZER_LIMIT = 256 << 20
PRE_KEY = "tokenizer.ggml.pre"
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_MEDIA = re.compile(r"vision|image|video|audio")
"""Markers around or in place of media; templates write them only for images, videos and audio."""
_MARKER = re.compile(r"<\|[A-Za-z0-9_]+\|>")
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
_ANSWER = "strataprobe"
_GUESSED = 1024
"""The bit with which llama.cpp marks a guessed file type."""

PLAIN = frozenset(
    {"llama", "mistral3", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe"}
    | {"smollm3", "olmo2", "starcoder2", "exaone", "internlm2", "granite", "granitemoe", "gemma", "gemma2", "gemma3"}
)
"""Architectures with plain attention: heads times head size, the same in every layer."""
_PARTS = ("attn_norm.weight", "attn_output.weight")
_DECODERS = (("token_embd.weight",), ("output_norm.weight", "output_hc_norm.weight"))
"""Tensors of every decoder block, each under one of these names: hyper-connections (qwen4exp) replace norms."""
_WITH_NORMS = ("attn", "ssm", "nextn", "hc", "indexer", "ple")
"""Groups of tensors that have their norms with them."""


def header_problems(metadata: Mapping[str, MetaValue], tensors: Sequence[TensorInfo]) -> list[str]:
    """Return the problems that keep llama.cpp from loading the model, each with key and value; empty for a valid
    model."""
    architecture = _value(metadata, "general.architecture")
    if not isinstance(architecture, str):
        return ["general.architecture is missing"]
    if _value(metadata, "general.type") not in (None, "model"):
        return []
    known = {tensor.name: tensor for tensor in tensors}
    return [
        *_numbers(metadata, architecture),
        *_blocks(metadata, architecture, tensors),
        *_layers(tensors),
        *_shapes(metadata, architecture, known),
        *_file_type(metadata, tensors),
        *_vocabulary(metadata),
    ]


def template_problems(metadata: Mapping[str, MetaValue], template: str) -> list[str]:
    """Return the control tokens of ``template`` that the vocabulary lacks, and a wrong end-of-turn token."""
    tokens, types = _tokens(metadata), _types(metadata)
    if not tokens:
        return []
    places = {token: index for index, token in enumerate(tokens)}
    prompt = _probe(template)
    found = []
    markers = set(_MARKER.findall(_COMMENT.sub("", template)))
    media = {marker for marker in markers - set(_MARKER.findall(prompt)) if _MEDIA.search(marker)}
    if not media & places.keys():
        markers -= media  # a text-only model: no prompt that it can get contains such a marker
    for marker in sorted(markers):
        index = places.get(marker)
        # The markers of a plain conversation must be control tokens; a marker for tools may be user-defined.
        allowed = (CONTROL,) if marker in prompt else (CONTROL, USER_DEFINED)
        if index is None:
            found.append(f"tokenizer.ggml.tokens has no {marker}, which the template writes")
        elif index < len(types) and types[index] not in allowed:
            said = f"tokenizer.ggml.token_type[{index}] ({marker}) is {types[index]}"
            found.append(f"{said} and must be {CONTROL}, control")
    end = _end_of_turn(prompt)
    ids = {key: _value(metadata, f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")}
    if end in places and ids["eos"] is not None and places[end] not in ids.values():
        said = ids["eos"]
        shown = tokens[said] if isinstance(said, int) and 0 <= said < len(tokens) else "no token"
        found.append(f"tokenizer.ggml.eos_token_id is {said} ({shown}) and the template ends turns with {end}")
    return found


def tokenizer_problems(metadata: Mapping[str, MetaValue], path: Path) -> list[str]:
    """Return where the ids and the pre-tokenizer of a ``tokenizer.json`` differ from the header's.

    Raises ``BadInput`` if it is not a tokenizer.
    """
    tokens = _tokens(metadata)
    try:
        value = json.loads(read_bytes(path, TOKENIZER_LIMIT))
        vocabulary = value["model"]["vocab"]
        if isinstance(vocabulary, list):
            vocabulary = {item[0]: index for index, item in enumerate(vocabulary)}
        ids = {**vocabulary, **{item["content"]: item["id"] for item in value.get("added_tokens", [])}}
        pre = _pre_problems(metadata, value, path.name)
        wrong = [
            (token, index)
            for token, index in ids.items()
            if not isinstance(index, int) or not 0 <= index < len(tokens) or tokens[index] != token
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"is not a tokenizer ({error})", where=path) from None
    if not tokens or not wrong:
        return pre
    token, index = wrong[0]
    there = tokens[index] if isinstance(index, int) and 0 <= index < len(tokens) else "no token"
    return [f"{path.name} gives {token!r} the id {index}, where the GGUF has {there!r} ({len(wrong)} ids differ)", *pre]


def _pre_problems(metadata: Mapping[str, MetaValue], tokenizer: Mapping[str, Any], name: str) -> list[str]:
    """Return the problem of a pre-tokenizer that llama.cpp knows and that is not the vocabulary's."""
    said = _value(metadata, PRE_KEY)
    if _value(metadata, "tokenizer.ggml.model") != "gpt2" or not isinstance(said, str):
        return []
    meant = contradicted_pre(tokenizer, said)
    return [] if meant is None else [f"{PRE_KEY} is {said}, but {name} splits text by the rules of {meant}"]


def config_problems(metadata: Mapping[str, MetaValue], config: Mapping[str, Any], where: str) -> list[str]:
    """Return the numbers of a config.json that differ from the header's, which means that it is of another model."""
    inner = config.get("text_config")
    text: Mapping[str, Any] = inner if isinstance(inner, dict) else config
    architecture = _value(metadata, "general.architecture")
    pairs = {
        "hidden_size": f"{architecture}.embedding_length",
        "num_attention_heads": f"{architecture}.attention.head_count",
    }
    return [
        f"{where}: {key} is {text[key]} and {name} is {found}"
        for key, name in pairs.items()
        if isinstance(text.get(key), int) and isinstance(found := _value(metadata, name), int) and found != text[key]
    ]


def _value(metadata: Mapping[str, MetaValue], key: str) -> Any:
    stored = metadata.get(key)
    return None if stored is None else stored.value


def _tokens(metadata: Mapping[str, MetaValue]) -> list[str]:
    value = _value(metadata, "tokenizer.ggml.tokens")
    return value if isinstance(value, list) else []


def _types(metadata: Mapping[str, MetaValue]) -> list[int]:
    value = _value(metadata, "tokenizer.ggml.token_type")
    return value if isinstance(value, list) else []


def _numbers(metadata: Mapping[str, MetaValue], architecture: str) -> Iterator[str]:
    for name in ("context_length", "embedding_length", "block_count"):
        value = _value(metadata, f"{architecture}.{name}")
        if value is None:
            yield f"{architecture}.{name} is missing"
        elif not isinstance(value, list) and not (isinstance(value, int) and value > 0):
            yield f"{architecture}.{name} is {value} and must be above 0"
    for name in ("rope.freq_base", "rope.freq_base_swa", "attention.layer_norm_rms_epsilon"):
        value = _value(metadata, f"{architecture}.{name}")
        if value is not None and not (isinstance(value, (int, float)) and value > 0):
            yield f"{architecture}.{name} is {value} and must be above 0"
    heads, shared = (_value(metadata, f"{architecture}.attention.{key}") for key in ("head_count", "head_count_kv"))
    if isinstance(heads, int) and isinstance(shared, int) and shared and heads % shared:
        yield f"{architecture}.attention.head_count_kv is {shared}, which does not divide the {heads} heads"
    deep, count = (_value(metadata, f"{architecture}.{key}") for key in ("n_deepstack_layers", "block_count"))
    if isinstance(deep, int) and isinstance(count, int) and deep >= count:
        # Its last block must be one that no image reaches into: llama.cpp takes the rows that it needs there.
        yield f"{architecture}.n_deepstack_layers is {deep} and must be below the {count} blocks"


def _blocks(metadata: Mapping[str, MetaValue], architecture: str, tensors: Sequence[TensorInfo]) -> Iterator[str]:
    numbers = {int(match[1]) for tensor in tensors if (match := _BLOCK.match(tensor.name))}
    count = _value(metadata, f"{architecture}.block_count")
    if isinstance(count, int) and numbers != set(range(count)):
        missing = sorted(set(range(min(count, 1 << 16))) - numbers)
        there = f"block {missing[0]} is missing" if missing else f"there are blocks up to {max(numbers)}"
        yield f"{architecture}.block_count is {count} and {there}"


def _layers(tensors: Sequence[TensorInfo]) -> Iterator[str]:
    """Compare the layers with each other, for each group of tensors (attention, feed-forward, experts, ...)."""
    names = {tensor.name for tensor in tensors}
    for choices in _DECODERS:
        if not names & set(choices):
            yield f"the tensor {choices[0]} is missing"
    groups: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for tensor in tensors:
        if match := _BLOCK.match(tensor.name):
            groups[_group(match[2])][int(match[1])].add(match[2])
    for blocks in groups.values():
        kinds = Counter(frozenset(parts) for parts in blocks.values())
        for block, parts in sorted(blocks.items()):
            own = frozenset(parts)
            fuller = [kind for kind, count in kinds.items() if own < kind and count >= kinds[own]]
            if fuller:
                lacking = min(min(fuller, key=len) - own)
                yield f"the tensor blk.{block}.{lacking} is missing; other layers like it have it"


def _group(part: str) -> str:
    """Return the group of a tensor: ``attn``, ``ffn`` (experts separately), ``ssm``, ``nextn``, ..."""
    head = re.split(r"[._]", part, maxsplit=1)[0]
    for suffix in ("_exps", "_shexp", "_inp"):
        if suffix in part:
            return head + suffix
    return head if "norm" not in part or head in _WITH_NORMS else "norm"


def _shapes(metadata: Mapping[str, MetaValue], architecture: str, known: Mapping[str, TensorInfo]) -> Iterator[str]:
    width = _value(metadata, f"{architecture}.embedding_length")
    tokens = metadata.get("tokenizer.ggml.tokens")
    count = None if tokens is None or tokens.item_type is None else len(tokens)
    for name in ("token_embd.weight", "output.weight"):
        tensor = known.get(name)
        if tensor is None or len(tensor.shape) != 2:
            continue
        if isinstance(width, int) and tensor.shape[0] != width:
            yield f"{name} has rows of {tensor.shape[0]} and {architecture}.embedding_length is {width}"
        if count is not None and tensor.shape[1] != count:
            yield f"{name} has {tensor.shape[1]} rows and tokenizer.ggml.tokens {count} tokens"
    if architecture in PLAIN and isinstance(width, int):
        yield from _plain_shapes(metadata, architecture, width, known)


def _plain_shapes(
    metadata: Mapping[str, MetaValue], architecture: str, width: int, known: Mapping[str, TensorInfo]
) -> Iterator[str]:
    def number(key: str, default: int | None = None) -> int | None:
        value = _value(metadata, f"{architecture}.{key}")
        return value if isinstance(value, int) and not isinstance(value, bool) else default if value is None else None

    heads = number("attention.head_count")
    if not heads:
        return
    shared = number("attention.head_count_kv", heads)
    keys, values = (number(f"attention.{name}_length", width // heads) for name in ("key", "value"))
    hidden, experts = number("feed_forward_length"), number("expert_count", 0)
    expert_hidden = number("expert_feed_forward_length", hidden)
    wanted: dict[str, tuple[int | None, ...]] = {
        "attn_norm.weight": (width,),
        "ffn_norm.weight": (width,),
        "attn_q.weight": (width, heads * keys if keys else None),
        "attn_k.weight": (width, shared * keys if shared and keys else None),
        "attn_v.weight": (width, shared * values if shared and values else None),
        "attn_output.weight": (heads * values if values else None, width),
        "ffn_gate.weight": (width, hidden),
        "ffn_up.weight": (width, hidden),
        "ffn_down.weight": (hidden, width),
        "ffn_gate_inp.weight": (width, experts),
        "ffn_gate_exps.weight": (width, expert_hidden, experts),
        "ffn_up_exps.weight": (width, expert_hidden, experts),
        "ffn_down_exps.weight": (expert_hidden, width, experts),
    }
    blocks = {match[1] for name in known if (match := _BLOCK.match(name))}
    for block in sorted(blocks, key=int):
        for part in _PARTS:
            if f"blk.{block}.{part}" not in known and architecture not in ("olmo2",):
                yield f"the tensor blk.{block}.{part} is missing"
        for part, shape in wanted.items():
            tensor = known.get(f"blk.{block}.{part}")
            if tensor is not None and not _fits(tensor.shape, shape):
                said = " x ".join("any" if n is None else str(n) for n in shape)
                yield f"{tensor.name} is {' x '.join(map(str, tensor.shape))} and the header's numbers make it {said}"


def _fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(shape) == len(wanted) and all(w in (None, n) for n, w in zip(shape, wanted, strict=True))


def _file_type(metadata: Mapping[str, MetaValue], tensors: Sequence[TensorInfo]) -> Iterator[str]:
    stored = _value(metadata, "general.file_type")
    if not isinstance(stored, int):
        return
    preset = next((one for one in PRESETS.values() if one.file_type == stored & ~_GUESSED and not one.copy), None)
    matrices = [tensor for tensor in tensors if len(tensor.shape) > 1]
    if preset is None or not matrices:
        return
    there = {tensor.type for tensor in matrices}
    allowed = {preset.base, *(fallback(preset.base, tensor.shape[0]) for tensor in matrices)}
    if preset.name == "MXFP4_MOE":
        allowed.add(PRESETS["Q8_0"].base)
    if not there & allowed:
        types = ", ".join(sorted(type.name for type in there))
        yield f"general.file_type is {stored} ({preset.name}) and no matrix is {preset.base.name}: they are {types}"


def _vocabulary(metadata: Mapping[str, MetaValue]) -> Iterator[str]:
    model, tokens = _value(metadata, "tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if model is None or model in ("none", "no_vocab"):
        return
    if tokens is None or tokens.item_type is None:
        yield "tokenizer.ggml.tokens is missing"
        return
    count = len(tokens)
    for key in ("token_type", "scores"):
        stored = metadata.get(f"tokenizer.ggml.{key}")
        if stored is not None and stored.item_type is not None and len(stored) != count:
            yield f"tokenizer.ggml.{key} has {len(stored)} entries for {count} tokens"
    merges = metadata.get("tokenizer.ggml.merges")
    if model == "gpt2" and (merges is None or merges.item_type is None or not len(merges)):
        yield "tokenizer.ggml.merges is missing or empty, and the model of the tokenizer is gpt2"
    for key, value in metadata.items():
        if not (key.startswith("tokenizer.ggml.") and key.endswith(("_token_id", "_token_ids"))):
            continue
        for index in value.value if isinstance(value.value, list) else [value.value]:
            if not isinstance(index, int) or not 0 <= index < count:
                yield f"{key} is {index} and there are {count} tokens"


def _probe(template: str) -> str:
    """Return the prompt of one question and answer; empty if the template rejects such a conversation."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _ANSWER}]
    try:
        return ChatTemplate(template).render(messages, add_generation_prompt=False)
    except StrataError:
        return ""


def _end_of_turn(prompt: str) -> str:
    """Return the text after the answer of ``_probe`` that looks like a control token, empty if there is none."""
    match = re.match(r"\s*(<[^<>\s]+>)", prompt.rpartition(_ANSWER)[2]) if _ANSWER in prompt else None
    return "" if match is None else match[1]
