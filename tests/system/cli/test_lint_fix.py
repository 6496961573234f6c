from __future__ import annotations

import io
import json
import os
import subprocess
from pathlib import Path

import pytest

from prime_train.cli.lint.files import check
from prime_train.cli.lint.fix import Repair, diff, rewrite
from prime_train.core.errors import UserError
from prime_train.rules.explain import BASE

FAULTY = BASE.replace("micro_batch = 8", "micro_bacth = 8  # as much as fits") + "[optim]\nlr = '1e-3'\n"


def test_lint_fixes_files_and_gives_what_is_left(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(FAULTY + "warm_up = 5\n")
    output, ok = check([str(file)], repair=Repair(write=True))
    assert not ok
    assert output.endswith("1 error in 1 file; 2 findings fixed")
    assert "optim.warm_up" in output
    assert file.read_text() == FAULTY.replace("micro_bacth", "micro_batch").replace("'1e-3'", "0.001") + "warm_up = 5\n"


def test_a_record_of_a_run_is_not_fixed(tmp_path: Path) -> None:
    (tmp_path / "runs/one/events").mkdir(parents=True)
    (tmp_path / "runs/one/attempts/001").mkdir(parents=True)
    (tmp_path / "runs/one/resolved.json").write_text("{}")
    for name in ("config.toml", "attempts/001/copy.toml"):
        file = tmp_path / "runs/one" / name
        file.write_text(FAULTY)
        with pytest.raises(UserError, match="record of a run"):
            check([str(file)], repair=Repair(write=True))
        assert file.read_text() == FAULTY
        assert check([str(file)], repair=Repair(write=False))[0].startswith("---")


def test_a_diff_has_colours_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.toml"
    file.write_text(FAULTY)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    output, _ = check([str(file)], repair=Repair(write=False))
    assert "\x1b[31m-micro_bacth = 8  # as much as fits\x1b[0m" in output
    assert "\x1b[32m+micro_batch = 8  # as much as fits\x1b[0m" in output


def test_diff_writes_nothing_and_judges_the_file_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(FAULTY)
    output, ok = check([str(file)], unwanted=("CFG003",), repair=Repair(write=False))
    assert not ok
    assert file.read_text() == FAULTY
    changed = [line for line in output.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == ["-micro_bacth = 8  # as much as fits", "+micro_batch = 8  # as much as fits"]


def test_a_fix_that_changes_the_run_is_made_only_when_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    uneven = FAULTY.replace("micro_bacth = 8", "micro_bacth = 8\nglobal_batch = 20")
    file.write_text(uneven)
    output, ok = check([str(file)], repair=Repair(write=True))
    assert not ok
    assert output.endswith("1 error in 1 file; 2 findings fixed; 1 more with --unsafe-fixes")
    assert "global_batch = 20" in file.read_text()
    output, ok = check([str(file)], repair=Repair(write=True, unsafe=True))
    assert ok
    assert output == "1 file is clean; 1 finding fixed"
    assert "global_batch = 16" in file.read_text()


def test_json_states_which_fixes_are_safe(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(FAULTY + "warm_up = 5\n[model]\nkv_heads = 3\n[schedule]\ndecay_steps = 9\n")
    output, _ = check([str(file)], output_format="json")
    found = {item["key"]: item["applicability"] for item in json.loads(output)["files"][0]["findings"]}
    assert found == {
        "batch.micro_bacth": "safe",  # its right name
        "optim.lr": "safe",  # its right type
        "optim.warm_up": None,
        "model.kv_heads": "unsafe",  # another model
        "schedule.decay_steps": "safe",  # nothing reads it
    }


def test_standard_input_cannot_be_fixed_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(FAULTY.encode())))
    with pytest.raises(UserError, match="standard input"):
        check(["-"], repair=Repair(write=True))


def test_a_file_is_rewritten_with_its_mode_and_mark(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(b"\xef\xbb\xbfa = 1\r\n")
    file.chmod(0o640)
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    rewrite(str(link), "a = 1\r\n", "a = 2\r\n")
    assert file.read_bytes() == b"\xef\xbb\xbfa = 2\r\n"
    assert file.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link.toml", "run.toml"]


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("a = 3\n")
    with pytest.raises(UserError, match="changed while it was checked"):
        rewrite(str(file), "a = 1\n", "a = 2\n")
    assert file.read_text() == "a = 3\n"


def test_what_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        rewrite(str(tmp_path / "gone.toml"), "a", "b")


def test_nothing_is_written_where_nothing_changed(tmp_path: Path) -> None:
    rewrite(str(tmp_path / "gone.toml"), "a", "a")
    assert diff("x", "a", "a") == ""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a = 1\nb = 2\n", "a = 1\nb = 3\n"),
        ("a = 1", "a = 2\n"),
        ("a", "b"),
        ("# one\u2028line\n" * 4 + "a = 1\n", "# one\u2028line\n" * 4 + "a = 2\n"),
    ],
)
def test_a_diff_can_be_applied(tmp_path: Path, before: str, after: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(before)
    change = diff("run.toml", before, after) + "\n"
    subprocess.run(["git", "apply", "-"], input=change, text=True, cwd=tmp_path, check=True, timeout=20)
    assert file.read_text() == after
