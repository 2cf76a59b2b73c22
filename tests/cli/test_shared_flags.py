"""Errors become one sentence and an exit code; JSON mode prints one object."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os

import pytest
import typer
from typer.testing import CliRunner

from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags
from strata_pack.errors import MEANINGS, BadInput, CheckFailed, EnvironmentFailure, StrataError, WrongUse


def run(error: BaseException | None, *flags: str) -> tuple[int, str, str]:
    app = typer.Typer()

    @app.command()
    @with_shared_flags
    def command(*, out: Out) -> None:
        """Do it."""
        if error is not None:
            raise error
        out.line("a line")
        out.result({"ok": True})

    result = CliRunner().invoke(app, list(flags))
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(("kind", "code"), [(CheckFailed, 1), (WrongUse, 2), (BadInput, 2), (EnvironmentFailure, 3)])
def test_each_kind_of_error_has_its_exit_code(kind: type[StrataError], code: int) -> None:
    assert run(kind("went wrong", where="file", remedy="mend it"))[0] == code


def test_an_error_is_one_sentence_that_says_where_and_what_to_do() -> None:
    _, out, err = run(BadInput("is truncated", where="a.gguf", remedy="fetch it again"))
    assert (out, err) == ("", "strata-pack: a.gguf: is truncated; fetch it again\n")


def test_debug_shows_the_traceback() -> None:
    assert "Traceback" in run(BadInput("is truncated"), "--debug")[2]


def test_json_mode_reports_the_error_as_an_object() -> None:
    _, out, _ = run(BadInput("is truncated"), "--json")
    assert json.loads(out) == {"ok": False, "error": "is truncated", "exit_code": 2, "meaning": MEANINGS[2]}


def test_json_mode_prints_one_object_on_stdout_and_lines_on_stderr() -> None:
    _, out, err = run(None, "--json")
    assert (json.loads(out), err) == ({"ok": True}, "a line\n")


def test_quiet_prints_nothing() -> None:
    assert run(None, "--quiet") == (0, "", "")


def test_quiet_leaves_the_object_alone() -> None:
    code, out, err = run(None, "--quiet", "--json")
    assert (code, json.loads(out), err) == (0, {"ok": True}, "")


def test_a_person_sees_the_line_alone() -> None:
    assert run(None) == (0, "a line\n", "")


def test_an_interrupt_is_130_without_a_traceback() -> None:
    code, _, err = run(KeyboardInterrupt())
    assert (code, "Traceback" in err) == (130, False)


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (OSError(5, "Input/output error", "disk"), 3)], ids=repr
)
def test_json_mode_reports_what_is_no_error_of_ours_as_an_object(error: BaseException, code: int) -> None:
    _, out, err = run(error, "--json")
    said = err.strip().removeprefix("strata-pack: ")
    assert json.loads(out) == {"ok": False, "error": said, "exit_code": code, "meaning": MEANINGS[code]}


def test_json_mode_prints_no_second_object() -> None:
    app = typer.Typer()

    @app.command()
    @with_shared_flags
    def command(*, out: Out) -> None:
        """Do it."""
        out.announce({"listening": True})
        raise EnvironmentFailure("the server died")

    result = CliRunner().invoke(app, ["--json"])
    assert (result.exit_code, json.loads(result.stdout)) == (3, {"ok": True, "listening": True})


def test_an_error_of_the_system_is_a_sentence_too() -> None:
    code, _, err = run(OSError(5, "Input/output error", "disk"))
    assert (code, err) == (3, "strata-pack: disk: Input/output error\n")


def test_json_goes_to_a_stream_without_an_encoding_too() -> None:
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        Out("json").announce({"name": "é"})
    assert json.loads(stream.getvalue()) == {"ok": True, "name": "é"}


def test_json_has_null_for_a_number_that_it_cannot_write() -> None:
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        Out("json").announce({"figures": [math.inf, math.nan, 1.5]})
    assert json.loads(stream.getvalue()) == {"ok": True, "figures": [None, None, 1.5]}


def test_ok_is_what_the_exit_code_says() -> None:
    app = typer.Typer()

    @app.command()
    @with_shared_flags
    def command(*, out: Out) -> None:
        """Do it."""
        out.result({"found": 3})
        raise CheckFailed("three findings")

    result = CliRunner().invoke(app, ["--json"])
    failure = {"ok": False, "error": "three findings", "exit_code": 1, "meaning": MEANINGS[1]}
    assert json.loads(result.stdout) == {**failure, "found": 3}


@pytest.mark.parametrize("text", ["a\x1b[2Jb", "a\u202eb", "a\nb", "a\udcffb"])
def test_a_path_cannot_drive_the_terminal(text: str) -> None:
    _, _, err = run(BadInput("is damaged", where=text))
    assert err == f"strata-pack: a{ascii(text)[2:-2]}b: is damaged\n"


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOENT, 2), (errno.EISDIR, 2), (errno.EACCES, 3), (errno.EIO, 3)])
def test_what_the_system_says_of_a_path_has_the_code_of_its_cause(number: int, kind: int) -> None:
    assert run(OSError(number, os.strerror(number), "file"))[0] == kind


def test_a_fault_of_ours_is_one_sentence_and_70() -> None:
    code, out, err = run(ZeroDivisionError("division by zero"), "--json")
    assert (code, json.loads(out)["meaning"], "Traceback" in err) == (70, MEANINGS[70], False)
    assert "report it" in err


def test_no_memory_is_the_environment() -> None:
    assert run(MemoryError())[0] == 3
