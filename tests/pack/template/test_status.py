"""What ``template status`` says of packs and files: TI-004 (Modelfile), TI-010 (what overrides the template)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strata_pack.chat.library import list_templates
from strata_pack.errors import BadInput
from strata_pack.files import sha256_text
from strata_pack.pack.paths import TEMPLATE
from strata_pack.pack.template.status import template_status
from strata_pack.weights.gguf.edit import TEMPLATE_KEY
from strata_pack.weights.gguf.file import MetaValue
from tests.pack.template.texts import SHORT
from tests.pack.tiny_gguf import STOCK, metadata, tensors, write_file, write_tiny
from tests.pack.tiny_pack import write_pack


def test_status_says_which_template_llama_cpp_takes_with_tools(tmp_path: Path) -> None:
    named = metadata(STOCK) | {f"{TEMPLATE_KEY}.tool_use": MetaValue.string("tools")}
    write_file(tmp_path / "m.gguf", named, tensors())
    found = template_status(tmp_path / "m.gguf")
    assert found.agree
    assert found.notes == [
        f"for requests with tools, llama.cpp takes m.gguf: {TEMPLATE_KEY}.tool_use (unknown) "
        "in place of the main template"
    ]


def test_status_follows_the_link_of_a_hub_cache_to_a_blob_without_a_suffix(tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / ("a" * 64)
    link = tmp_path / "snapshots" / "main" / "m.gguf"
    for folder in (blob.parent, link.parent):
        folder.mkdir(parents=True)
    write_tiny(tmp_path / "m.gguf").rename(blob)
    link.symlink_to(f"../../blobs/{blob.name}")
    found = template_status(link)
    assert (found.sha256, found.target) == (sha256_text(STOCK), str(link))


def test_status_of_a_link_that_leads_nowhere_says_so(tmp_path: Path) -> None:
    link = tmp_path / "m.gguf"
    link.symlink_to("gone")
    with pytest.raises(BadInput, match="link to gone, which does not exist"):
        template_status(link)


def test_the_result_says_which_engine_reads_what_and_what_overrides_it(tmp_path: Path, put: Any) -> None:
    readers = {reader["engine"]: reader for reader in put(write_pack(tmp_path / "pack"), SHORT).readers}
    server = next(reader for engine, reader in readers.items() if "llama-server" in engine)
    assert "--chat-template-file" in server["overridden_by"]
    assert "GGUF" in server["reads"]
    assert "tokenizer/chat_template.jinja" in readers["transformers"]["reads"]
    assert "RENDERER" in readers["Ollama"]["caveat"]


@pytest.mark.parametrize(
    ("modelfile", "words"),
    [
        ("FROM ./m.gguf\nRENDERER qwen3.5\nPARSER qwen3.5\n", "Ollama will not use this template"),
        ('FROM ./m.gguf\nTEMPLATE """{{ .Prompt }}"""\n', "Ollama will use that one"),
    ],
)
def test_a_modelfile_next_to_the_gguf_is_pointed_out(tmp_path: Path, put: Any, modelfile: str, words: str) -> None:
    (tmp_path / "Modelfile").write_text(modelfile)
    assert any(words in note for note in put(write_tiny(tmp_path / "m.gguf"), SHORT).notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FROM x.gguf\nRENDERER qwen3.5\n", "its RENDERER ignores any template"),
        ("FROM x.gguf\n", "another language"),
        ("hello", "neither a pack nor a .gguf"),
    ],
)
def test_a_target_that_is_no_model_is_refused(tmp_path: Path, put: Any, text: str, words: str) -> None:
    (tmp_path / "Modelfile").write_text(text)
    with pytest.raises(BadInput, match=words):
        put(tmp_path / "Modelfile", SHORT)


def test_status_lists_every_copy(tmp_path: Path) -> None:
    shipped = list_templates()[0]
    root = write_pack(tmp_path / "pack", shipped.source)
    found = template_status(root)
    assert (found.status, found.id, found.agree, found.previous) == ("repaired", shipped.id, True, 0)
    assert [copy["place"] for copy in found.copies] == [f"tiny.gguf: {TEMPLATE_KEY}", TEMPLATE]
    (root / TEMPLATE).write_text("by hand")
    found = template_status(root)
    assert not found.agree
    assert found.notes == [f"{TEMPLATE} differs from tiny.gguf: {TEMPLATE_KEY}"]


def test_status_of_a_gguf_without_a_template_is_missing(tmp_path: Path) -> None:
    assert template_status(write_tiny(tmp_path / "m.gguf", template=None)).status == "missing"
