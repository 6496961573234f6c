"""A checkpoint that is being deleted is at no moment a complete one."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from prime_train.checkpoints import layout, listing, removal
from prime_train.core.rundir import set_stranger_aside


def test_the_manifest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "step_5"
    folder.mkdir()
    for name in ("0.distcp", ".metadata"):
        (folder / name).write_bytes(b"0123")
    layout.write_manifest(folder, 5)

    def killed(_folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            removal.remove(folder)
    (left,) = removal.list_set_aside(tmp_path)
    assert (left / "0.distcp").exists()
    assert removal.is_decided(left)
    assert layout.scan(tmp_path) == []


def test_nothing_to_remove_is_fine(tmp_path: Path) -> None:
    removal.remove(tmp_path / "step_5")


@pytest.mark.parametrize("marker", removal.MARKERS)
def test_a_folder_in_the_place_of_a_marker_is_deleted_too(tmp_path: Path, marker: str) -> None:
    folder = tmp_path / "step_5"
    (folder / marker / "deeper").mkdir(parents=True)
    removal.remove(folder)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A folder of the user's outside the run, with the files of a complete checkpoint."""
    folder = tmp_path / "archive" / "step_5"
    (folder / "trainer").mkdir(parents=True)
    for name in ("0.distcp", "STABLE", ".metadata", "trainer/.metadata"):
        (folder / name).write_bytes(b"0123")
    layout.write_manifest(folder, 5)
    return folder


@pytest.mark.parametrize("swapped", ["step_5", "step_5/trainer"])
def test_a_link_that_takes_the_name_meanwhile_leads_nowhere(
    tmp_path: Path, stranger: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    shutil.copytree(stranger, tmp_path / "step_5")
    before = names(stranger)

    def swap(folder: Path) -> None:
        """Comes right after the look at the folder, as another user with the right to write could."""
        place = folder.parent / swapped.replace("step_5", folder.name)
        if not place.is_symlink():
            shutil.rmtree(place)
            place.symlink_to(stranger / swapped.removeprefix("step_5").removeprefix("/"))

    monkeypatch.setattr(removal, "refuse_link", swap)
    with contextlib.suppress(OSError):
        removal.remove(tmp_path / "step_5")
    assert names(stranger) == before


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("name", ["step_5", ".going-step_5.1"])
def test_no_deletion_follows_a_link(tmp_path: Path, stranger: Path, name: str) -> None:
    before = names(stranger)
    root = tmp_path / "checkpoints"
    root.mkdir()
    link = root / name
    link.symlink_to(stranger)
    for delete in (removal.remove, removal.finish, lambda path: removal.remove_unless([path], lambda _: "")):
        with pytest.raises(OSError, match="symbolic link"):
            delete(link)
    assert removal.put_back(root) == removal.list_set_aside(root) == []
    assert removal.list_links(root) == [link]
    assert link.samefile(stranger)
    assert names(stranger) == before


def test_no_deletion_follows_a_link_in_the_folder(tmp_path: Path, stranger: Path) -> None:
    before = names(stranger)
    folder = tmp_path / "checkpoints" / "step_7"
    folder.mkdir(parents=True)
    (folder / "trainer").symlink_to(stranger / "trainer")
    (folder / "file").symlink_to(stranger / "0.distcp")
    removal.remove(folder)
    assert list(folder.parent.iterdir()) == []
    assert names(stranger) == before


def test_a_linked_checkpoint_is_named_and_not_resumed_from(tmp_path: Path, stranger: Path) -> None:
    root = tmp_path / "checkpoints"
    root.mkdir()
    (root / "step_5").symlink_to(stranger)
    (found,) = layout.scan(root)
    assert (found.problem, found.size_bytes) == (listing.LINK, 0)
    with pytest.raises(ValueError, match="symbolic link"):
        layout.mark_damaged(root / "step_5", "no reason")
    assert layout.problem(stranger) == ""


def test_a_link_gives_its_name_to_a_save(tmp_path: Path, stranger: Path) -> None:
    root = tmp_path / "checkpoints"
    root.mkdir()
    for expected in ("step_5.set_aside", "step_5.set_aside.2"):
        (root / "step_5").symlink_to(stranger)
        assert removal.describe_stranger(root / "step_5") == listing.LINK
        kept = set_stranger_aside(root / "step_5")
        assert kept.name == expected
        assert kept.readlink() == stranger


def test_a_file_with_the_name_of_a_checkpoint_is_no_checkpoint_and_gives_its_name_to_a_save(tmp_path: Path) -> None:
    file = tmp_path / "step_5"
    file.write_text("notes", encoding="utf-8")
    assert removal.describe_stranger(file) == "it is not a folder"
    assert set_stranger_aside(file).read_text(encoding="utf-8") == "notes"
    assert removal.describe_stranger(file) == ""
    file.mkdir()
    assert removal.describe_stranger(file) == ""


def test_a_file_that_another_process_takes_away_does_not_end_a_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = tmp_path / f"{removal.ASIDE}step_5.1"
    aside.mkdir()
    (aside / "a.distcp").write_text("x")
    delete, tries = shutil.rmtree, [0]

    def interrupted(path: Path) -> None:
        tries[0] += 1
        if tries[0] < 3:
            raise FileNotFoundError(2, "No such file or directory", "a.distcp.1")
        delete(path)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    removal.finish(aside)
    assert not aside.exists()
    assert tries == [3]
