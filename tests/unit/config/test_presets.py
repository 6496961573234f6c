"""The user's presets: found beside the shipped ones, and not believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prime_train.config.detect import read_config
from prime_train.config.presets import find_preset, list_presets, read_preset, users_folder
from prime_train.core.errors import UserError
from prime_train.core.outside import CONFIG_BYTES
from prime_train.registry import gpus

TEXT = '# GPUs: rtx-4090\n# Mine. It is small.\n\n[run]\nname = "mine"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty folder of the user's presets."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "xdg" / "prime-train" / "presets"
    made.mkdir(parents=True)
    assert users_folder() == made
    return made


def test_without_a_folder_there_are_the_shipped_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nowhere"))
    assert list(list_presets()) == list(gpus.presets())


def test_a_preset_of_the_user_is_listed_and_is_a_config(folder: Path) -> None:
    (folder / "mine.toml").write_text(TEXT)
    first = next(iter(list_presets().values()))
    assert (first.name, first.is_users, first.shadows) == ("mine", True, False)
    text, path = read_config("mine")
    assert (text, Path(path).absolute()) == (TEXT, folder / "mine.toml")


def test_a_shadowed_preset_is_reached_by_another_name(folder: Path) -> None:
    (folder / "quickstart.toml").write_text(TEXT)
    shipped = gpus.presets()["quickstart"]
    known = list_presets()
    assert (known["quickstart"].is_users, known["quickstart"].shadows) == (True, True)
    assert known["shipped:quickstart"].path == shipped
    assert read_config("quickstart")[0] == TEXT
    assert read_config("shipped:quickstart")[0] == shipped.read_text()


def test_every_shipped_preset_has_its_long_name(folder: Path) -> None:
    assert all(find_preset(f"shipped:{name}") for name in gpus.presets())
    (folder / "mine.toml").write_text(TEXT)
    assert find_preset("shipped:mine") is None


@pytest.mark.parametrize("name", ["a:b.toml", ".toml", "-x.toml", "a b.toml", "a\nb.toml", "notes.txt", ".hidden.toml"])
def test_a_file_without_a_plain_name_is_no_preset(folder: Path, name: str) -> None:
    (folder / name).write_text(TEXT)
    assert list(list_presets()) == list(gpus.presets())


def write_bad(folder: Path, kind: str) -> None:
    path = folder / "quickstart.toml"
    match kind:
        case "link":
            (folder / "secret").write_text(TEXT)
            path.symlink_to(folder / "secret")
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "huge":
            with open(path, "wb") as file:
                file.truncate(CONFIG_BYTES + 1)
        case "latin1":
            path.write_bytes("é".encode("latin1"))


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("link", "it is a symbolic link"),
        ("pipe", "it is a named pipe, not a regular file"),
        ("folder", "it cannot be read"),
        ("huge", "it has more than 64.0 MiB"),
        ("latin1", "byte 1 is not UTF-8"),
    ],
)
def test_a_file_that_is_no_preset_is_named_and_the_shipped_one_is_offered(folder: Path, kind: str, what: str) -> None:
    write_bad(folder, kind)
    found = find_preset("quickstart")
    assert found is not None
    for read in (lambda: read_preset(found), lambda: read_config("quickstart")):
        with pytest.raises(UserError) as caught:
            read()
        assert (caught.value.what, caught.value.where) == (what, str(folder / "quickstart.toml"))
        assert "shipped:quickstart" in caught.value.fix
