from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.cli import entry
from prime_train.cli.lint.files import check
from prime_train.core.errors import UserError
from prime_train.registry import gpus
from prime_train.rules.explain import BASE
from prime_train.rules.judge import lint

UNEVEN = BASE.replace("micro_batch = 8", "micro_batch = 8\nglobal_batch = 20")


class Printed:
    """What one command printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


def run(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stdin: bytes = b""
) -> Printed:
    monkeypatch.setattr(sys, "argv", ["prime-train", *arguments])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    with pytest.raises(SystemExit) as end:
        entry.main()
    captured = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return Printed(end.value.code, captured.out, captured.err)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.toml").write_text(BASE)
    Path("bad.toml").write_text(UNEVEN)


@pytest.mark.parametrize("preset", gpus.presets())
def test_presets_are_clean(preset: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    printed = run(["lint", preset], capsys, monkeypatch)
    assert (printed.code, printed.out, printed.err) == (0, "1 file is clean\n", "")


@pytest.mark.parametrize("options", [[], ["--output-format", "full"]])  # done at once, and through typer
def test_a_bad_file(options: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    printed = run(["lint", "bad.toml", *options], capsys, monkeypatch)
    assert printed.code == 1
    assert printed.out.startswith(
        "error[BAT001] bad.toml:13:1  batch.global_batch = 20\n"
        "  13 | global_batch = 20\n"
        "     | ^^^^^^^^^^^^^^^^^\n"
        "  what  20 sequences"
    )
    assert printed.out.endswith("(prime-train rule BAT001)\n1 error in 1 file\n")
    assert "\x1b" not in printed.out


def test_warnings_alone_are_exit_code_0(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("warned.toml").write_text(BASE + "[checkpoint]\ninterval_steps = 5000\n")
    printed = run(["lint", "warned.toml"], capsys, monkeypatch)
    assert printed.code == 0
    assert printed.out.startswith("warning[CKP001]")


def test_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    printed = run(["lint", "-", "--output-format", "concise"], capsys, monkeypatch, UNEVEN.encode())
    assert printed.code == 1
    assert printed.out.startswith("<stdin>:13:1: error[BAT001] ")
    assert len(printed.out.splitlines()) == 1


def test_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    printed = run(["lint", "good.toml", "bad.toml", "--output-format", "json"], capsys, monkeypatch)
    assert printed.out == run(["lint", "good.toml", "bad.toml", "--json"], capsys, monkeypatch).out
    document = json.loads(printed.out)
    assert printed.code == 1
    assert document["version"] == 1
    assert document["summary"] == {"files": 2, "errors": 1, "warnings": 0, "notes": 0}
    assert [file["path"] for file in document["files"]] == ["good.toml", "bad.toml"]


def test_github(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    printed = run(["lint", "bad.toml", "--output-format", "github"], capsys, monkeypatch)
    assert printed.out.startswith("::error file=bad.toml,line=13,endLine=13,title=BAT001 batch.global_batch,col=1")


def test_select_and_ignore(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["lint", "bad.toml", "--ignore", "BAT"], capsys, monkeypatch).code == 0
    assert run(["lint", "bad.toml", "--select", "CFG,MOD001"], capsys, monkeypatch).code == 0
    assert run(["lint", "bad.toml", "--select", "bat001"], capsys, monkeypatch).code == 1
    unknown = run(["lint", "bad.toml", "--ignore", "XYZ"], capsys, monkeypatch)
    assert unknown.code == 2
    assert "no rule is called XYZ" in unknown.err


def test_folders_are_searched_for_our_configs() -> None:
    for name, text in {
        "pyproject.toml": "[project]\nname = 'x'\n",
        "broken.toml": "[run]\nname = \n",
        "foreign.toml": "[other]\nx = \n",
        ".hidden/run.toml": BASE,
        "deep/below/run.toml": BASE,
        "notes.txt": "[run]",
    }.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    output, ok = check([], output_format="json")
    assert [file["path"] for file in json.loads(output)["files"]] == [
        "bad.toml",
        "broken.toml",
        "good.toml",
        "deep/below/run.toml",
    ]
    assert not ok


def test_a_folder_without_a_config_is_not_clean() -> None:
    Path("empty").mkdir()
    with pytest.raises(UserError, match="no config that is known here"):
        check(["empty"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "error[CFG006] config.toml:1:1  run\n"),
        (b"[run", "error[CFG001] config.toml:1:5\n"),
        (b"a = 1\nb = ]\n", "error[CFG001] config.toml:2:5\n"),
        (b"[" * 100_000, "error[CFG001] config.toml:1:"),
        (b"a = " + b"[" * 100_000, "error[CFG001] config.toml:1:1\n"),
        (b"x = " + b"9" * 1_000_000, "error[CFG001] config.toml:1:5\n"),
        (b"\x00" * 1_000_000, "error[CFG001] config.toml:1:1\n"),
        (b"x" * 1_000_000, "error[CFG001] config.toml:1:"),
        (b"# " + b"x" * 1_000_000, "error[CFG006] config.toml:1:1  data\n"),
    ],
    ids=["empty", "open", "value", "brackets", "deep", "digits", "zeros", "garbage", "comment"],
)
def test_bad_content_is_a_finding(
    content: bytes, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("config.toml").write_bytes(content)
    printed = run(["lint", "config.toml"], capsys, monkeypatch)
    assert (printed.code, printed.err) == (1, "")
    assert said in printed.out


@pytest.mark.parametrize("change", [str.encode, lambda text: b"\xef\xbb\xbf" + text.encode()], ids=["plain", "bom"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_byte_order_mark_and_crlf_are_fine(change: object, newline: str) -> None:
    assert callable(change)
    Path("config.toml").write_bytes(change(UNEVEN.replace("\n", newline)))
    output, _ = check(["config.toml"], output_format="concise")
    assert output.startswith("config.toml:13:1: error[BAT001]")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_line_that_is_shown_is_that_of_the_place(newline: str) -> None:
    text = f"# one\u2028line\n{UNEVEN}".replace("micro_batch", "\tmicro_batch").replace("\n", newline)
    Path("config.toml").write_bytes(text.encode())
    output, _ = check(["config.toml"])
    place, shown, carets = output.splitlines()[:3]
    assert place.startswith("error[BAT001] config.toml:14:1 ")
    assert shown.startswith("  14 | global_batch")
    assert carets.rstrip("^").endswith("   | ")


def test_utf_16_is_named() -> None:
    Path("config.toml").write_bytes(UNEVEN.encode("utf-16"))
    with pytest.raises(UserError) as caught:
        check(["config.toml"])
    assert caught.value.fix == "iconv -f utf-16 -t utf-8 config.toml, or save it as UTF-8"


def test_a_missing_file_gets_the_file_of_a_similar_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (Path(), Path("below")):
        folder.mkdir(exist_ok=True)
        (folder / "rl_small.toml").write_text("")
        for wrong in ("rl_smal.toml", "rl_small.tml"):
            printed = run(["lint", str(folder / wrong)], capsys, monkeypatch)
            assert (printed.code, f"did you mean {folder / 'rl_small.toml'}?" in printed.err) == (2, True)


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("gone.toml", "there is no such file"),
        ("", "there is no such file"),
        ("latin1.toml", "byte 0xe9 is not UTF-8"),
        ("good.toml/x", "it cannot be read"),
        ("a\0b", "it cannot be read"),
        ("x" * 5000, "it cannot be read"),
    ],
)
def test_what_cannot_be_read_is_exit_code_2(
    path: str, what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("latin1.toml").write_bytes('[run]\nname = "é"\n'.encode("latin1"))
    printed = run(["lint", path], capsys, monkeypatch)
    assert (printed.code, printed.out) == (2, "")
    assert what in printed.err
    assert "\n  why " in printed.err
    assert "\n  fix " in printed.err


def test_a_clean_lint_imports_nothing_heavy() -> None:
    program = (
        "import sys; from prime_train.cli import entry; sys.argv[1:] = ['lint', 'good.toml']\n"
        "try:\n    entry.main()\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'typer', 'pydantic', 'rich', 'tree_sitter', 'torch'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_hook_leaves_other_files_alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert run(["lint", "--configs-only", "pyproject.toml"], capsys, monkeypatch).out == ""
    printed = run(["lint", "--configs-only", "pyproject.toml", "bad.toml"], capsys, monkeypatch)
    assert printed.code == 1
    assert printed.out.endswith("1 error in 1 file\n")


# --- never a traceback ---------------------------------------------------------------------------

_TABLES = ["[run]", "[[data.sources]]", "[data]", 'name = "x"', "max_steps = 5", "a.b.c", " = ", "1979-05-27", "nan"]
_SIGNS = ["=", "{", "}", "[", "]", '"', "'''", "\n", "\r\n", "#", "# prime-train: ignore[BAT001]", "\x00", "\x85", "é"]
_scraps = st.sampled_from(_TABLES + _SIGNS)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(_scraps, st.text(max_size=4)), max_size=25))
def test_any_text_gets_a_verdict(scraps: list[str]) -> None:
    text = "".join(scraps).encode("utf-8", "replace").decode()
    verdict = lint(text, "t.toml")
    assert verdict.findings or verdict.run is not None


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_mutant_of_a_config_gets_a_verdict(data: st.DataObject) -> None:
    text = gpus.presets()["quickstart"].read_text()
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 12)))
        text = text[:start] + data.draw(st.one_of(_scraps, st.text(max_size=3))) + text[end:]
    text = text.encode("utf-8", "replace").decode()
    lines = text.count("\n") + 1
    for finding in lint(text, "t.toml").findings:
        assert 1 <= finding.span.line <= lines
        assert finding.what
        assert finding.why
        assert finding.fix


def test_unsafe_fixes_are_asked_for_beside_a_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(UNEVEN)
    alone = run(["lint", str(file), "--unsafe-fixes"], capsys, monkeypatch)
    assert alone.code == 2
    assert "needs --fix or --diff" in alone.err
    kept = run(["lint", str(file), "--fix"], capsys, monkeypatch)
    assert kept.code == 1
    assert kept.out.rstrip().endswith("1 error in 1 file; 1 more with --unsafe-fixes")
    assert file.read_text() == UNEVEN
    shown = run(["lint", str(file), "--diff", "--unsafe-fixes"], capsys, monkeypatch)
    assert "+global_batch = 16" in shown.out
    fixed = run(["lint", str(file), "--fix", "--unsafe-fixes"], capsys, monkeypatch)
    assert (fixed.code, fixed.out) == (0, "1 file is clean; 1 finding fixed\n")
    assert file.read_text() == UNEVEN.replace("= 20", "= 16")


@pytest.mark.parametrize("name", ["pipe.toml", "zero.toml"])
def test_a_config_that_is_no_regular_file_is_named_and_not_read(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo("pipe.toml")
    Path("zero.toml").symlink_to("/dev/zero")
    printed = run(["lint", name], capsys, monkeypatch)
    assert printed.code == 2
    assert f"error: {name}" in printed.err
    assert "not a regular file" in printed.err
    printed = run(["lint", "good.toml", "+", name], capsys, monkeypatch)
    assert printed.code == 2


def test_a_folder_lint_skips_what_is_no_regular_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo("pipe.toml")
    Path("zero.toml").symlink_to("/dev/zero")
    Path("nothing.toml").symlink_to("nowhere")
    Path("bad.toml").unlink()
    printed = run(["lint", "."], capsys, monkeypatch)
    assert (printed.code, printed.out) == (0, "1 file is clean\n")
    skipped = [line.split(" (")[0] for line in printed.err.splitlines()]
    assert skipped == [
        "note: pipe.toml: it is skipped: it is a named pipe, not a regular file",
        "note: zero.toml: it is skipped: it is a device, not a regular file",
    ]


def test_strict_fails_on_warnings(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("warned.toml").write_text(BASE + "[checkpoint]\ninterval_steps = 5000\n")
    plain = run(["lint", "warned.toml", "--output-format", "concise"], capsys, monkeypatch)
    strict = run(["lint", "warned.toml", "--output-format", "concise", "--strict"], capsys, monkeypatch)
    hook = run(["lint", "--configs-only", "--strict", "warned.toml"], capsys, monkeypatch)
    assert (plain.code, strict.code, hook.code) == (0, 1, 1)
    assert plain.out == strict.out
    assert run(["lint", "good.toml", "--strict"], capsys, monkeypatch).code == 0


def test_a_folder_lint_skips_run_directories(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("runs/one/events").mkdir(parents=True)
    Path("runs/one/config.toml").write_text(UNEVEN)
    Path("runs/notes.toml").write_text(UNEVEN)
    printed = run(["lint", "--output-format", "json"], capsys, monkeypatch)
    assert [file["path"] for file in json.loads(printed.out)["files"]] == ["bad.toml", "good.toml", "runs/notes.toml"]


def test_an_error_is_json_where_json_is_wanted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments in (["lint", "--output-format", "json"], ["validate", "--json"]):
        printed = run([*arguments, "missing.toml"], capsys, monkeypatch)
        error = json.loads(printed.out)["error"]
        assert (printed.code, error["exit_code"], error["where"]) == (2, 2, "missing.toml")
        assert {"what", "why", "fix"} <= error.keys()
        assert printed.err.startswith("error: missing.toml")
    assert run(["lint", "missing.toml"], capsys, monkeypatch).out == ""


def test_the_summary_counts_what_fix_would_repair(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("typos.toml").write_text(UNEVEN.replace("micro_batch", "micro_bacth") + "[optim]\nlr = '1e-3'\n")
    printed = run(["lint", "typos.toml"], capsys, monkeypatch)
    assert printed.out.endswith("2 errors in 1 file; 2 fixable with --fix\n")


def test_carets_mark_no_secret(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hf_" + "aB3" * 12
    Path("secret.toml").write_text(BASE.replace('name = "example"', f'name = "{secret}"'))
    printed = run(["lint", "secret.toml"], capsys, monkeypatch)
    assert "SEC001" in printed.out
    assert secret not in printed.out


def test_standard_input_without_end_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prime_train.config.detect.CONFIG_BYTES", 1000)
    printed = run(["lint", "-"], capsys, monkeypatch, stdin=b"#" * 2000)
    assert printed.code == 2
    assert "more than" in printed.err
