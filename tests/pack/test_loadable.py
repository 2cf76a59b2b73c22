"""What a loader would stumble over is named with key and value; real models' headers raise no alarm."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Q
from gguf import GGUFValueType as V

from strata_pack.errors import BadInput
from strata_pack.pack.loadable import config_problems, header_problems, template_problems, tokenizer_problems
from strata_pack.weights.convert.convert import SafetensorsSource
from strata_pack.weights.gguf.file import GgufFile, MetaValue, TensorInfo
from tests.pack.header_shapes import MODELS, header
from tests.tiny_models import write_model

Header = tuple[dict[str, MetaValue], list[TensorInfo]]


@pytest.mark.parametrize("name", MODELS)
def test_the_header_of_a_real_model_raises_no_alarm(name: str) -> None:
    assert header_problems(*header(MODELS[name])) == []


@pytest.mark.parametrize("variant", ["qwen3", "qwen3moe"])
def test_a_converted_checkpoint_raises_no_alarm(variant: str, tmp_path: Path) -> None:
    with SafetensorsSource.open(write_model(variant, tmp_path / variant)) as source:
        tensors = [TensorInfo.make(t.name, t.shape, t.type) for t in source.tensors]
        assert header_problems(source.metadata, tensors) == []
        assert tokenizer_problems(source.metadata, tmp_path / variant / "tokenizer.json") == []


def test_a_published_model_raises_no_alarm(smollm2: Path) -> None:
    with GgufFile.open(smollm2) as file:
        assert header_problems(file.metadata, file.tensors) == []
        assert template_problems(file.metadata, file.metadata["tokenizer.chat_template"].value) == []


def _set(key: str, value: MetaValue) -> Callable[[Header], None]:
    return lambda made: made[0].__setitem__(key, value)


def _without(*names: str) -> Callable[[Header], None]:
    def change(made: Header) -> None:
        for name in names:
            made[0].pop(name, None)
        made[1][:] = [tensor for tensor in made[1] if tensor.name not in names]

    return change


def _reshaped(name: str, *shape: int) -> Callable[[Header], None]:
    return lambda made: made[1].__setitem__(
        slice(None), [replace(t, shape=shape) if t.name == name else t for t in made[1]]
    )


def _typed(type: Q) -> Callable[[Header], None]:
    return lambda made: made[1].__setitem__(slice(None), [replace(t, type=type) for t in made[1]])


U32 = MetaValue.uint32
DEFECTS: dict[str, tuple[Callable[[Header], None], str]] = {
    "a tensor of one layer": (_without("blk.3.attn_k.weight"), "blk.3.attn_k.weight is missing"),
    "a tensor of the last layer": (_without("blk.27.ffn_up.weight"), "blk.27.ffn_up.weight is missing"),
    "a norm": (_without("blk.0.attn_q_norm.weight"), "blk.0.attn_q_norm.weight is missing"),
    "the final norm": (_without("output_norm.weight"), "output_norm.weight is missing"),
    "the embedding": (_without("token_embd.weight"), "token_embd.weight is missing"),
    "a shape": (_reshaped("blk.5.attn_v.weight", 1024, 512), "blk.5.attn_v.weight is 1024 x 512"),
    "a turned matrix": (_reshaped("blk.5.ffn_down.weight", 1024, 3072), "blk.5.ffn_down.weight is 1024 x 3072"),
    "too many blocks": (_set("qwen3.block_count", U32(29)), "block_count is 29 and block 28 is missing"),
    "too few blocks": (_set("qwen3.block_count", U32(27)), "block_count is 27 and there are blocks up to 27"),
    "no blocks": (_set("qwen3.block_count", U32(0)), "block_count is 0"),
    "end of text": (_set("tokenizer.ggml.eos_token_id", U32(151936)), "eos_token_id is 151936 and there are 151936"),
    "begin of text": (_set("tokenizer.ggml.bos_token_id", U32(2**31)), "bos_token_id is 2147483648"),
    "no merges": (_without("tokenizer.ggml.merges"), "tokenizer.ggml.merges is missing"),
    "empty merges": (_set("tokenizer.ggml.merges", MetaValue.array(V.STRING, [])), "merges is missing or empty"),
    "types": (_set("tokenizer.ggml.token_type", MetaValue.array(V.INT32, [1])), "token_type has 1 entries for 151936"),
    "tokens": (
        _set("tokenizer.ggml.tokens", MetaValue.array(V.STRING, ["a"])),
        "rows and tokenizer.ggml.tokens 1",
    ),
    "no tokens": (_without("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens is missing"),
    "rope base": (_set("qwen3.rope.freq_base", MetaValue(V.FLOAT32, 0.0)), "rope.freq_base is 0.0 and must be above 0"),
    "rope base below 0": (_set("qwen3.rope.freq_base", MetaValue(V.FLOAT32, -1.0)), "rope.freq_base is -1.0"),
    "context": (_set("qwen3.context_length", U32(0)), "context_length is 0 and must be above 0"),
    "no context": (_without("qwen3.context_length"), "context_length is missing"),
    "file type": (_set("general.file_type", U32(15)), "general.file_type is 15 (Q4_K_M) and no matrix is Q4_K"),
    "types of tensors": (_typed(Q.Q8_0), "general.file_type is 32 (BF16) and no matrix is BF16: they are Q8_0"),
    "heads": (_set("qwen3.attention.head_count_kv", U32(3)), "head_count_kv is 3, which does not divide the 16 heads"),
    "deepstack": (
        _set("qwen3.n_deepstack_layers", U32(28)),
        "n_deepstack_layers is 28 and must be below the 28 blocks",
    ),
    "width": (_set("qwen3.embedding_length", U32(2048)), "rows of 1024 and qwen3.embedding_length is 2048"),
    "no architecture": (_without("general.architecture"), "general.architecture is missing"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_named_with_key_and_value(name: str) -> None:
    plant, words = DEFECTS[name]
    made = header(MODELS["Qwen3-0.6B"])
    plant(made)
    assert any(words in problem for problem in header_problems(*made)), header_problems(*made)


@pytest.mark.parametrize(
    ("model", "tensor"),
    [
        ("Qwen3-30B-A3B", "blk.7.ffn_down_exps.weight"),
        ("DeepSeek-V2-Lite", "blk.4.attn_v_b.weight"),
        ("Qwen3-Next-80B-A3B", "blk.2.ssm_conv1d.weight"),
        ("Qwen3-Next-80B-A3B", "blk.7.attn_k.weight"),
        ("gpt-oss-20b", "blk.9.attn_sinks.weight"),
        ("Phi-3-mini", "blk.1.attn_output.weight"),
        ("GLM-4.5-Air", "blk.46.attn_q.weight"),
    ],
)
def test_a_missing_tensor_is_found_whatever_the_layers_are_made_of(model: str, tensor: str) -> None:
    made = header(MODELS[model])
    _without(tensor)(made)
    assert any(f"{tensor} is missing" in problem for problem in header_problems(*made))


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def vocabulary(types: tuple[int, ...] = (1, 3, 3, 3), eos: int = 2) -> dict[str, MetaValue]:
    return {
        "tokenizer.ggml.tokens": MetaValue.array(V.STRING, ["a", "<|im_start|>", "<|im_end|>", "<|endoftext|>"]),
        "tokenizer.ggml.token_type": MetaValue.array(V.INT32, types),
        "tokenizer.ggml.eos_token_id": U32(eos),
    }


def test_a_template_whose_tokens_are_there_raises_no_alarm() -> None:
    assert template_problems(vocabulary(), CHATML) == []


@pytest.mark.parametrize("type", [1, 2, 4, 5, 6])
def test_a_token_of_the_template_that_is_not_control_is_named(type: int) -> None:
    (problem,) = template_problems(vocabulary((1, type, 3, 3)), CHATML)
    assert problem == f"tokenizer.ggml.token_type[1] (<|im_start|>) is {type} and must be 3, control"


def test_a_marker_of_tools_may_be_user_defined() -> None:
    template = CHATML + "{% if tools %}<|endoftext|>{% endif %}"
    assert template_problems(vocabulary((1, 3, 3, 4)), template) == []
    assert template_problems(vocabulary((1, 3, 3, 1)), template) != []


def test_a_token_that_the_vocabulary_lacks_is_named() -> None:
    assert "has no <|user|>" in template_problems(vocabulary(), CHATML + "<|user|>")[0]


def test_a_token_in_a_comment_is_not_written() -> None:
    assert template_problems(vocabulary(), CHATML + "{# <|user|> #}") == []


def test_an_end_of_text_that_is_not_the_end_of_turn_is_named() -> None:
    (problem,) = template_problems(vocabulary(eos=3), CHATML)
    assert problem == "tokenizer.ggml.eos_token_id is 3 (<|endoftext|>) and the template ends turns with <|im_end|>"


def test_an_end_of_turn_of_its_own_is_enough() -> None:
    assert template_problems({**vocabulary(eos=3), "tokenizer.ggml.eot_token_id": U32(2)}, CHATML) == []


def tokenizer(path: Path, ids: dict[str, int]) -> Path:
    added = [{"content": token, "id": index} for token, index in ids.items() if token.startswith("<")]
    path.write_text(json.dumps({"model": {"vocab": {t: i for t, i in ids.items() if t == "a"}}, "added_tokens": added}))
    return path


def test_ids_of_the_tokenizer_are_those_of_the_gguf(tmp_path: Path) -> None:
    path = tokenizer(tmp_path / "tokenizer.json", {"a": 0, "<|im_start|>": 1})
    assert tokenizer_problems(vocabulary(), path) == []


def test_another_id_in_the_tokenizer_is_named(tmp_path: Path) -> None:
    path = tokenizer(tmp_path / "tokenizer.json", {"a": 0, "<|im_start|>": 2})
    (problem,) = tokenizer_problems(vocabulary(), path)
    assert problem == "tokenizer.json gives '<|im_start|>' the id 2, where the GGUF has '<|im_end|>' (1 ids differ)"


@pytest.mark.parametrize(
    ("named", "problems"),
    [
        ("smollm", []),
        ("refact", []),
        ("of-one-model", []),
        ("gpt-2", ["tokenizer.ggml.pre is gpt-2, but tokenizer.json splits text by the rules of smollm"]),
        ("tekken", ["tokenizer.ggml.pre is tekken, but tokenizer.json splits text by the rules of smollm"]),
    ],
)
def test_a_known_pre_tokenizer_of_other_rules_is_named(named: str, problems: list[str], tmp_path: Path) -> None:
    digits = {"type": "Digits", "individual_digits": True}
    rules = {"type": "Sequence", "pretokenizers": [digits, {"type": "ByteLevel", "add_prefix_space": False}]}
    path = tokenizer(tmp_path / "tokenizer.json", {"a": 0})
    path.write_text(json.dumps({**json.loads(path.read_text()), "pre_tokenizer": rules}))
    keys = {"tokenizer.ggml.model": MetaValue.string("gpt2"), "tokenizer.ggml.pre": MetaValue.string(named)}
    assert tokenizer_problems(vocabulary() | keys, path) == problems


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": {"vocab": 7}}'])
def test_a_file_that_is_no_tokenizer_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(BadInput, match="is not a tokenizer"):
        tokenizer_problems(vocabulary(), tmp_path / "tokenizer.json")


def test_a_config_of_another_model_is_named() -> None:
    metadata, _ = header(MODELS["Qwen3-0.6B"])
    assert config_problems(metadata, {"hidden_size": 1024, "num_attention_heads": 16}, "config.json") == []
    (problem,) = config_problems(metadata, {"text_config": {"hidden_size": 2048}}, "config.json")
    assert problem == "config.json: hidden_size is 2048 and qwen3.embedding_length is 1024"
