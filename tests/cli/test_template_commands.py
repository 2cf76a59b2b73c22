"""``template repair``, ``template lint`` and ``template prefix`` as a person or a script meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from strata_pack.chat.repair.prelude import prelude
from strata_pack.chat.repair.suite import generate
from strata_pack.cli.app import app
from strata_pack.llama.stub_model import write_stub_model

STOCK = Path(__file__).parent.parent / "data/chat/stock"
QUICK = ["--engine", "jinja2"]


@pytest.fixture(autouse=True)
def _short_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prove repairs on a sample: what a proof holds is the repair room's matter, here it is what a command does."""
    monkeypatch.setattr("strata_pack.chat.repair.repair.generate", lambda form: generate(form)[::12])


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["template", *args])
    return result.exit_code, result.stdout, result.stderr


def stock(name: str) -> Path:
    return STOCK / f"{name}.jinja"


def test_repair_writes_the_repaired_template_and_says_what_was_proved(tmp_path: Path) -> None:
    target = tmp_path / "repaired.jinja"
    code, out, _ = run("repair", str(stock("qwen38_like")), "-o", str(target), *QUICK)
    assert code == 0
    assert "repaired (xml calls)" in out
    assert "proved on jinja2" in out
    assert target.read_text(encoding="utf-8") == prelude("xml") + stock("qwen38_like").read_text(encoding="utf-8")


def test_repair_in_place_twice_leaves_the_file_of_the_first_time(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_bytes(stock("coder_like").read_bytes())
    assert run("repair", str(file), "--in-place", *QUICK)[0] == 0
    once = file.read_bytes()
    code, out, _ = run("repair", str(file), "--in-place", *QUICK)
    assert (code, file.read_bytes()) == (0, once)
    assert "not needed, it closes every stranded call already" in out


def test_repair_shows_the_change_as_a_diff() -> None:
    code, out, _ = run("repair", str(stock("qwen38_like")), "--diff", *QUICK)
    assert code == 0
    assert out.startswith("--- stock\n+++ repaired\n@@ ")
    assert "nothing was written" in out


def test_repair_as_json_is_one_object() -> None:
    code, out, _ = run("repair", str(stock("qwen38_like")), "--json", *QUICK)
    data = json.loads(out)
    assert (code, data["changed"], data["how"], data["proof"]["form"]) == (0, True, "prelude", "xml")
    assert data["proof"]["engines"][0]["engine"] == "jinja2"


def test_repair_refuses_with_the_first_difference_and_writes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "repaired.jinja"
    code, out, err = run("repair", str(stock("cuts_answers")), "-o", str(target), *QUICK)
    assert (code, target.exists()) == (2, False)
    assert "the call is not in the prompt" in err
    assert "wanted in red, got in green" in out


def test_repair_takes_the_template_out_of_a_gguf(tmp_path: Path) -> None:
    import gguf

    model, target = tmp_path / "model.gguf", tmp_path / "repaired.jinja"
    writer = gguf.GGUFWriter(model, "llama")
    writer.add_chat_template(stock("qwen38_like").read_text(encoding="utf-8"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert run("repair", str(model), "-o", str(target), *QUICK)[0] == 0
    assert target.read_text(encoding="utf-8") == prelude("xml") + stock("qwen38_like").read_text(encoding="utf-8")


def test_a_gguf_without_a_template_is_reported(tmp_path: Path) -> None:
    code, _, err = run("repair", str(write_stub_model(tmp_path / "stub.gguf")), *QUICK)
    assert (code, "has no chat template" in err) == (2, True)


def test_repair_in_place_of_a_gguf_is_wrong_use(tmp_path: Path) -> None:
    code, _, err = run("repair", str(write_stub_model(tmp_path / "stub.gguf")), "--in-place")
    assert code == 2
    assert "template install" in err


@pytest.mark.parametrize("command", ["repair", "lint", "prefix"])
def test_a_template_that_is_not_there_is_one_sentence(command: str) -> None:
    code, out, err = run(command, "nowhere/chat.jinja")
    assert (code, out) == (2, "")
    assert err == "strata-pack: nowhere/chat.jinja: no such file\n"


def test_lint_of_a_shipped_template_finds_nothing() -> None:
    code, out, _ = run("lint", "qwen3.8-flash-next", "--select", "ST1")
    assert (code, out) == (0, "qwen3.8-flash-next: nothing found\n")


def test_lint_fails_by_severity(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{{ x is float }}", encoding="utf-8")
    assert run("lint", str(file), "--select", "ST3")[0] == 0
    assert run("lint", str(file), "--select", "ST3", "--fail-on", "info")[0] == 1
    file.write_text("{{ x.find('a') }}", encoding="utf-8")
    assert run("lint", str(file), "--select", "ST3", "--fail-on", "error")[0] == 1
    assert run("lint", str(file), "--select", "ST3", "--ignore", "ST301")[0] == 0


def test_lint_sees_the_file_as_it_lies_there(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_bytes(b"\xef\xbb\xbf{{ 1 }}\r\n")
    code, out, _ = run("lint", str(file), "--select", "ST1", "--json")
    assert code == 1
    assert [one["rule"] for one in json.loads(out.split("\n{\n")[0])["findings"]] == ["ST101", "ST102"]


def test_lint_compares_the_copies_in_a_model_folder(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ 1 }}\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ 2 }}"}), encoding="utf-8")
    code, out, _ = run("lint", str(tmp_path), "--select", "ST7", "--json")
    assert code == 1
    assert "tokenizer_config.json" in json.loads(out)["findings"][0]["message"]


def test_lint_writes_sarif(tmp_path: Path) -> None:
    file = tmp_path / "lint.sarif"
    assert run("lint", str(stock("coder_like")), "--select", "ST5", "--sarif", str(file))[0] == 1
    results = json.loads(file.read_text(encoding="utf-8"))["runs"][0]["results"]
    assert [result["ruleId"] for result in results] == ["ST501"]


def test_lint_lists_its_rules_and_needs_a_template_otherwise() -> None:
    code, out, _ = run("lint", "--rules")
    assert (code, "ST501" in out) == (0, True)
    assert run("lint")[0] == 2


def test_prefix_shows_the_three_modes() -> None:
    code, out, _ = run("prefix", "qwen3.8-flash-next")
    assert code == 0
    assert "✓ thinking kept" in out
    assert "✗ thinking stripped" in out


def test_prefix_check_fails_for_a_template_that_drops_old_thinking() -> None:
    assert run("prefix", "qwen3.8-flash-next", "--check", "--quiet")[0] == 0
    code, _, err = run("prefix", str(stock("qwen35_like")), "--check", "--quiet")
    assert code == 1
    assert "does not extend the previous one" in err


def test_prefix_of_a_session_of_ones_own_in_one_mode(tmp_path: Path) -> None:
    file = tmp_path / "session.json"
    turn = {"role": "assistant", "content": "Hello.", "reasoning_content": "Greet."}
    messages = [{"role": "user", "content": "Hi."}, turn, {"role": "user", "content": "Bye."}]
    file.write_text(json.dumps(messages), encoding="utf-8")
    code, out, _ = run("prefix", "qwen3.8-flash-next", "--session", str(file), "--mode", "stripped", "--json")
    data = json.loads(out)
    assert (code, [one["mode"] for one in data["runs"]]) == (0, ["stripped"])
    assert data["runs"][0]["steps"][0]["break"]["cause"] == "thinking-not-sent"


def test_prefix_with_a_file_that_is_no_tokenizer_says_so(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("{}", encoding="utf-8")
    code, _, err = run("prefix", "qwen3.8-flash-next", "--tokenizer", str(file))
    assert code == 2
    assert "is not a tokenizer" in err


def test_lint_reads_the_templates_of_other_names_too(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    named = tmp_path / "additional_chat_templates" / "tool_use.jinja"
    named.parent.mkdir()
    named.write_text("{{ messages[0].content.find('a') }}", encoding="utf-8")
    code, out, _ = run("lint", str(tmp_path), "--select", "ST301", "--json")
    assert code == 1
    assert [one["path"] for one in json.loads(out)["findings"]] == [str(named)]


def named_gguf(path: Path, **templates: str) -> Path:
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    for name, text in templates.items():
        writer.add_string("tokenizer.chat_template" + ("" if name == "default" else f".{name}"), text)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_lint_reads_the_named_templates_of_a_bare_gguf(tmp_path: Path) -> None:
    model = named_gguf(tmp_path / "m.gguf", default="{{ 1 }}", tool_use="{{ messages[0].content.find('a') }}")
    code, out, _ = run("lint", str(model), "--select", "ST301", "--json")
    assert code == 1
    found = [one["path"] for one in json.loads(out)["findings"]]
    assert found == [f"{model}: tokenizer.chat_template.tool_use"]


def test_repair_writes_the_template_for_tools_where_transformers_looks_for_it(tmp_path: Path) -> None:
    texts = {name: stock(name).read_text(encoding="utf-8") for name in ("qwen38_like", "coder_like")}
    model = named_gguf(tmp_path / "m.gguf", default=texts["qwen38_like"], tool_use=texts["coder_like"])
    target = tmp_path / "out" / "chat_template.jinja"
    code, out, _ = run("repair", str(model), "-o", str(target), "--json", *QUICK)
    for_tools = target.parent / "additional_chat_templates" / "tool_use.jinja"
    assert (code, json.loads(out)["tools"]["written"]) == (0, str(for_tools))
    assert target.read_text(encoding="utf-8") == prelude("xml") + texts["qwen38_like"]
    assert for_tools.read_text(encoding="utf-8") == prelude("xml") + texts["coder_like"]


def test_repair_writes_nothing_when_the_template_for_tools_cannot_be_repaired(tmp_path: Path) -> None:
    main, bad = (stock(name).read_text(encoding="utf-8") for name in ("qwen38_like", "cuts_answers"))
    model = named_gguf(tmp_path / "m.gguf", default=main, tool_use=bad)
    target = tmp_path / "chat_template.jinja"
    code, _, err = run("repair", str(model), "-o", str(target), *QUICK)
    assert (code, list(tmp_path.iterdir())) == (2, [model])
    assert "the call is not in the prompt" in err


def test_golden_check_renders_cases_with_tools_with_the_template_for_tools(tmp_path: Path) -> None:
    model = named_gguf(tmp_path / "m.gguf", default="plain", tool_use="tools")
    case = {"messages": [{"role": "user", "content": "Hi"}]}
    cases = [
        {"name": "a", **case, "expected": "plain"},
        {"name": "b", **case, "tools": [{"type": "function"}], "expected": "tools"},
    ]
    golden = tmp_path / "golden.json"
    golden.write_text(json.dumps(cases), encoding="utf-8")
    result = CliRunner().invoke(app, ["golden", "check", str(model), "--golden", str(golden), "--json"])
    targets = json.loads(result.stdout)["targets"]
    assert result.exit_code == 0
    assert [(one["target"], len(one["results"])) for one in targets] == [
        (str(model), 1),
        (f"{model}: tokenizer.chat_template.tool_use", 1),
    ]


def test_prefix_measures_the_template_for_tools_where_the_session_has_tools(tmp_path: Path) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('not this one') }}", encoding="utf-8")
    other = tmp_path / "additional_chat_templates" / "tool_use.jinja"
    other.write_text(stock("coder_like").read_text(encoding="utf-8"), encoding="utf-8")
    code, out, _ = run("prefix", str(tmp_path), "--json")
    assert code == 0
    assert json.loads(out)["template"] == str(other)


def test_repair_in_place_repairs_the_template_for_tools_next_to_the_file(tmp_path: Path) -> None:
    main, other = tmp_path / "chat_template.jinja", tmp_path / "additional_chat_templates" / "tool_use.jinja"
    other.parent.mkdir()
    for path, name in ((main, "no_calls"), (other, "coder_like")):
        path.write_text(stock(name).read_text(encoding="utf-8"), encoding="utf-8")
    code, out, _ = run("repair", str(main), "--in-place", "--engine", "jinja2", "--json")
    assert code == 0
    assert json.loads(out)["tools"]["changed"]
    assert other.read_text(encoding="utf-8") != stock("coder_like").read_text(encoding="utf-8")
    assert main.read_text(encoding="utf-8") == stock("no_calls").read_text(encoding="utf-8")
