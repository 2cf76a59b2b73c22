"""The release file: what it may hold, and the sentence that refuses it."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from strata_pack.errors import BadInput
from strata_pack.pack.schema_check import KEYWORDS
from strata_pack.release.release_file import read_release, schema
from tests.conftest import ROOT
from tests.release.tiny_release import GATES, HEAD, MEASURED, PACKS, write_release

PAGE = ROOT / "docs/release.md"

WRONG = {
    "a mistyped key": (HEAD + PACKS + "[gates]\nkl_meen = 1\n", r"\[gates\] has the unknown key 'kl_meen'.*'kl_mean'"),
    "a mistyped key of a pack": (
        HEAD + '[[pack]]\nqaunt = "Q8_0"\n',
        r"\[pack 1\] has the unknown key 'qaunt'.*'quant'",
    ),
    "a mistyped table": (HEAD + PACKS + "[gatez]\n", "the file has the unknown key 'gatez'.*'gates'"),
    "a key of no likeness": (HEAD + "zzz = 1\n" + PACKS, r"\[release\] has the unknown key 'zzz'; known are name"),
    "a wrong type": (HEAD + PACKS + '[gates]\nkl_mean = "low"\n', r"\[gates.kl_mean\]: 'low' is not of type number"),
    "a negative limit": (HEAD + PACKS + "[gates]\nkl_mean = -1\n", "is below 0"),
    "no pack": (HEAD, "'pack' is missing"),
    "no release": (PACKS, "'release' is missing"),
    "no TOML": ("[release", "is no TOML"),
    "an unknown preset": (HEAD + '[[pack]]\nquant = "Q4_K_N"\n', "Q4_K_N"),
    "two ways to quantize": (HEAD + '[[pack]]\nquant = "Q8_0"\nfit = "1GB"\n', "needs one of quant, recipe and fit"),
    "no way to quantize": (HEAD + "[[pack]]\nimatrix = true\n", "none of them"),
    "a size that is none": (HEAD + '[[pack]]\nfit = "large"\n', "is no size"),
    "two packs of a name": (HEAD + PACKS + '[[pack]]\nquant = "Q8_0"\n', "two packs are called Tiny-Q8_0"),
    "a name that leaves the folder": (HEAD + PACKS + '[[pack]]\nquant = "F16"\nname = "../x"\n', "does not match"),
    "a missing recipe": (HEAD + '[[pack]]\nrecipe = "r.toml"\n', "there is no file r.toml"),
    "a missing text": (HEAD + PACKS + '[imatrix]\ntext = ["t.txt"]\n', "there is no file t.txt"),
    "a missing source": (HEAD.replace("tiny.gguf", "other.gguf") + PACKS, "no such file or folder"),
    "a mistyped template": (
        HEAD.replace("template.jinja", "atuo") + PACKS,
        r"no template 'atuo'; did you mean 'auto'",
    ),
    "a matrix that is made and given": (
        HEAD + PACKS + '[imatrix]\nfile = "calibration.txt"\nchunks = 1\n',
        "excludes chunks",
    ),
    "a path that no disk can have": (HEAD + PACKS + '[publish]\nsign = "~nobody-here/key.pem"\n', "is no path"),
    "a folder where a file belongs": (HEAD + '[[pack]]\nrecipe = "."\n', r"\[pack 1.recipe\]: . is a folder"),
    "golden cases that are none": (HEAD.replace("golden.json", "tiny.gguf") + PACKS, r"\[release.golden\]"),
    "a limit that nothing can miss": (HEAD + PACKS + "[gates]\nkl_mean = inf\n", "inf is above 1000"),
    "a name that ends with a new line": (HEAD.replace('"Tiny"', '"Tiny\\n"') + PACKS, "does not match"),
    "a pack in the place of a report or a card": (
        HEAD + '[[pack]]\nquant = "F16"\nname = "Reports"\n',
        "place of a report or a card",
    ),
    "a repository that is none": (HEAD + PACKS + '[publish]\nrepo = "../../x"\n', "is no repository on the Hub"),
    "a place to publish to that holds the packs": (
        HEAD + PACKS + '[publish]\nto = "."\n',
        "holds the packs themselves",
    ),
    "two places to publish to": (HEAD + PACKS + '[publish]\nrepo = "a/b"\nto = "x"\n', "one of them"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_refused_by_name(case: str, tmp_path: Path) -> None:
    text, sentence = WRONG[case]
    with pytest.raises(BadInput, match=sentence) as error:
        read_release(write_release(tmp_path, text))
    assert str(tmp_path / "release.toml") in str(error.value)


def test_all_that_is_wrong_is_named_at_once(tmp_path: Path) -> None:
    text = HEAD + '[[pack]]\nquant = "Q9"\n[[pack]]\nrecipe = "r.toml"\n'
    with pytest.raises(BadInput, match=r"Q9.*r\.toml"):
        read_release(write_release(tmp_path, text))


def test_paths_count_from_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_release(tmp_path / "release", HEAD + MEASURED + PACKS)
    monkeypatch.chdir(tmp_path)
    release = read_release(Path("release/release.toml"))
    assert release.source == str(tmp_path / "release/tiny.gguf")
    assert release.out == file.parent / "packs"


def test_a_pack_has_limits_of_its_own(tmp_path: Path) -> None:
    text = HEAD + PACKS + "gates = { kl_mean = 0.5, smoke = true }\n" + GATES
    release = read_release(write_release(tmp_path, text))
    assert [(pack.limits.kl_mean, pack.limits.smoke) for pack in release.packs] == [(5.0, False), (0.5, True)]


def test_a_hub_source_is_named_as_one(tmp_path: Path) -> None:
    release = read_release(write_release(tmp_path, HEAD.replace("tiny.gguf", "org/name@v1") + PACKS))
    assert release.source == "hf://org/name@v1"


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


def keys(rule: dict[str, object]) -> set[str]:
    """Return every key that a schema's tables may have, all the way down."""
    found: set[str] = set()
    for part in (rule.get("properties") or {}, rule.get("$defs") or {}):
        assert isinstance(part, dict)
        found |= set(rule.get("properties") or {})  # type: ignore[arg-type]
        for inner in part.values():
            found |= keys(inner)
    if isinstance(rule.get("items"), dict):
        found |= keys(rule["items"])  # type: ignore[arg-type]
    return found


def keywords(rule: object) -> set[str]:
    if isinstance(rule, list):
        return {word for item in rule for word in keywords(item)}
    if not isinstance(rule, dict):
        return set()
    inner = [rule.get("items"), *(rule.get("properties") or {}).values(), *(rule.get("$defs") or {}).values()]
    return set(rule) | {word for item in inner for word in keywords(item)}


def test_every_keyword_of_the_schema_is_checked() -> None:
    assert keywords(schema()) <= KEYWORDS


def test_the_page_documents_every_key() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [key for key in sorted(keys(schema())) if f"`{key}`" not in page] == []
