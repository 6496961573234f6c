"""What another user plants in a folder that both may write is neither believed nor followed."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prime_train.control.access import load_tokens
from prime_train.control.index import Index, IndexedRun
from prime_train.core.errors import UserError
from prime_train.core.rundir import make_own_folder
from prime_train.trainer.audio.clip_files import Columns
from prime_train.trainer.audio.tables import open_clips

OTHER = 65_534  # any user but root
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to another user")


def give_away(*paths: Path) -> None:
    for path in paths:
        os.chown(path, OTHER, OTHER, follow_symlinks=False)


def plant(folder: Path, how: str, victim: Path) -> None:
    """A folder of another user, or a link of theirs to one of the victim's."""
    victim.mkdir(mode=0o700)
    if how == "link":
        folder.symlink_to(victim)
    else:
        folder.mkdir(mode=0o777)
    give_away(folder)


@as_root
@pytest.mark.parametrize("how", ["link", "folder"])
def test_a_folder_that_another_user_could_change_is_refused(tmp_path: Path, how: str) -> None:
    plant(tmp_path / "planted", how, tmp_path / "victim")
    with pytest.raises(PermissionError):
        make_own_folder(tmp_path / "planted")
    make_own_folder(tmp_path / "mine" / "below")
    make_own_folder(tmp_path / "mine" / "below")
    assert (tmp_path / "mine").stat().st_mode & 0o077 == 0


@as_root
@pytest.mark.parametrize("how", ["link", "folder"])
def test_the_tokens_of_a_page_are_in_a_folder_of_this_user(tmp_path: Path, how: str) -> None:
    plant(tmp_path / ".control", how, tmp_path / "victim")
    with pytest.raises(UserError) as raised:
        load_tokens(tmp_path / ".control")
    error = raised.value
    assert all((error.what, error.where, error.why, error.fix))
    assert list((tmp_path / "victim").iterdir()) == []
    assert list((tmp_path / ".control").iterdir()) == []


def test_an_entry_of_an_index_that_nests_without_end_is_left_out(tmp_path: Path) -> None:
    index = Index(tmp_path / "index.sqlite")
    index.keep({"good": IndexedRun("f", {"loss": float("nan")}, [])})
    index.close()
    database = sqlite3.connect(tmp_path / "index.sqlite")
    deep = '{"row": {}, "failures": [], "a": ' + "[" * 100_000 + "]" * 100_000 + "}"
    database.execute("INSERT INTO runs VALUES ('bad', 'f', ?)", (deep,))
    database.commit()
    database.close()
    assert list(Index(tmp_path / "index.sqlite").load()) == ["good"]


def read_first(path: Path) -> bytes:
    return bytes(open_clips(path, Columns()).read_clip(0))


def write_parquet(path: Path, clip: bytes) -> pa.Table:
    table = pa.table({"audio": [{"bytes": clip, "path": None}], "label": [0]})
    pq.write_table(table, path)
    return table


@as_root
def test_a_copy_in_the_cache_that_another_user_put_there_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))
    write_parquet(tmp_path / "a.parquet", b"good")
    assert read_first(tmp_path / "a.parquet") == b"good"
    (copy,) = (tmp_path / "cache" / "audio").glob("*.arrow")
    evil = write_parquet(tmp_path / "b.parquet", b"evil")
    with pa.OSFile(str(copy), "wb") as file, pa.ipc.new_stream(file, evil.schema) as writer:
        writer.write_table(evil)
    assert read_first(tmp_path / "a.parquet") == b"evil"  # a copy of this user's is believed
    give_away(copy)
    assert read_first(tmp_path / "a.parquet") == b"good"


def test_a_link_in_the_place_of_a_copy_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))
    write_parquet(tmp_path / "a.parquet", b"good")
    read_first(tmp_path / "a.parquet")
    (copy,) = (tmp_path / "cache" / "audio").glob("*.arrow")
    copy.unlink()
    (tmp_path / "precious").write_text(json.dumps("mine"))
    copy.with_name(f".{copy.name}.{os.getpid()}.tmp").symlink_to(tmp_path / "precious")
    assert read_first(tmp_path / "a.parquet") == b"good"
    assert (tmp_path / "precious").read_text() == '"mine"'
