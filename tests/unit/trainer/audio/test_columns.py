"""Columns by their types and declarations, and classes that have other names in another file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prime_train.core.errors import UserError
from prime_train.trainer.audio.clip_files import Columns
from prime_train.trainer.audio.columns import find_columns, refuse_other_names
from prime_train.trainer.audio.tables import open_clips


def write(path: Path, declared: Any, kind: str = ".arrow") -> Path:
    table = pa.table({"sound": [b"x"], "code": pa.array([[0]]), "length": [9]})
    metadata = {b"huggingface": declared if isinstance(declared, bytes) else json.dumps(declared).encode()}
    table = table.replace_schema_metadata(metadata)
    named = path.with_suffix(kind)
    if kind == ".parquet":
        pq.write_table(table, named)
        return named
    with pa.OSFile(str(named), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return named


def declare(names: Sequence[str], *, nested: bool) -> dict[str, Any]:
    label: dict[str, Any] = {"_type": "ClassLabel", "names": names}
    features = {"sound": {"_type": "Audio"}, "code": {"_type": "List", "feature": label} if nested else label}
    return {"info": {"features": features}}


COLUMNS = Columns(audio="sound", label="code")


@pytest.mark.parametrize("kind", [".arrow", ".parquet"])
def test_other_names_of_classes_are_refused(kind: str, tmp_path: Path) -> None:
    first = write(tmp_path / "a", declare(["robin", "wren"], nested=True), kind)
    same = write(tmp_path / "b", declare(["robin", "wren"], nested=False))
    plain = write(tmp_path / "c", {})
    refuse_other_names([plain, first, same, plain], COLUMNS)
    for names, what in ((["robin", "owl"], "label 1 is owl"), (["robin"], "label 1 is not there")):
        other = write(tmp_path / "d", declare(names, nested=True), kind)
        with pytest.raises(UserError, match=f"its {what}, and in a{kind} it is wren") as caught:
            refuse_other_names([first, same, other], COLUMNS)
        assert caught.value.where == str(other)
        refuse_other_names([first, other], Columns(audio="sound", label=None))


def test_columns_are_found_by_what_is_declared_and_the_declaration_is_not_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "a", declare(["robin"] * 1000, nested=False))
    assert find_columns(path) == COLUMNS
    (part,) = open_clips(path, COLUMNS).parts
    (kept,) = [batch.schema.metadata for batch in getattr(part, "_batches", ())]
    assert sum(map(len, (*kept, *kept.values()))) < 50  # a hash


@pytest.mark.parametrize("declared", [b"", b"\xff", b"[]", b"{}", b'{"info": {"features": 3}}', b'{"info": null}'])
def test_a_declaration_that_makes_no_sense_declares_nothing(declared: bytes, tmp_path: Path) -> None:
    refuse_other_names([write(tmp_path / "a", declared), write(tmp_path / "b", b"{}")], COLUMNS)
