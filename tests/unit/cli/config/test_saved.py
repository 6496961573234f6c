"""Versions of configs outside of runs: numbered, private, never replaced."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from prime_train.cli.config import saved
from prime_train.core.errors import UserError


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "prime_train" / "configs"


def test_each_save_is_another_version(data: Path) -> None:
    for number, text in enumerate(("one", "two", "three"), start=1):
        assert saved.save("good", "rl.toml", text, f"note {number}").title == f"good@{number}"
    assert [saved.read("good", number).text for number in (1, 2, 3)] == ["one", "two", "three"]
    newest = saved.read("good")
    assert (newest.number, newest.file, newest.note) == (3, "rl.toml", "note 3")
    assert (saved.list_names(), saved.list_numbers("good")) == (["good"], [1, 2, 3])
    assert [path.name for path in sorted(data.rglob("*")) if path.is_file()] == ["1.json", "2.json", "3.json"]


def test_a_version_is_for_its_owner_alone(data: Path) -> None:
    saved.save("good", "rl.toml", "text", "")
    assert stat.S_IMODE((data / "good" / "1.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((data / "good").stat().st_mode) == 0o700


def test_a_number_that_another_command_took_is_not_written_again(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved.save("good", "rl.toml", "first", "")
    listed = iter(([], [1]))  # the other command writes between the look and the write
    monkeypatch.setattr(saved, "list_numbers", lambda _: next(listed))
    assert saved.save("good", "rl.toml", "second", "").number == 2
    assert json.loads((data / "good" / "1.json").read_text())["text"] == "first"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "-a", "a b", "a@1", "a:b", "x" * 65, "é", "a\n"])
def test_a_name_that_is_not_plain_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="the name is not plain"):
        saved.save(name, "rl.toml", "text", "")
    assert saved.list_names() == []


def test_what_is_no_version_is_not_listed_and_a_damaged_one_is_named(data: Path) -> None:
    saved.save("good", "rl.toml", "text", "")
    for name in ("0.json", "x.json", "1.json.tmp", "01.json"):
        (data / "good" / name).write_text("{}")
    assert saved.list_numbers("good") == [1]
    for content in ("[]", "{", '{"saved_s": "x"}', '{"saved_s": 1, "note": "", "file": "a"}'):
        (data / "good" / "1.json").write_text(content)
        with pytest.raises(UserError) as refused:
            saved.read("good")
        assert refused.value.exit_code == 4
    (data / "good" / "2.json").symlink_to("/etc/passwd")
    with pytest.raises(UserError):
        saved.read("good", 2)


def test_a_version_that_is_not_there_is_named_with_those_that_are() -> None:
    saved.save("good", "rl.toml", "text", "")
    with pytest.raises(UserError, match="its versions are 1"):
        saved.read("good", 7)
    with pytest.raises(UserError, match="nothing was saved"):
        saved.read("other")


def test_the_name_of_a_file_does_not_lead_out_of_a_folder(data: Path) -> None:
    saved.save("good", "rl.toml", "text", "")
    path = data / "good" / "1.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"file": "../../rl.toml"}))
    assert saved.read("good").file == "rl.toml"
