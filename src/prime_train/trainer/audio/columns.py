"""Finds columns, and names of classes, in the schemas of files with clips. Reads no row."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.trainer.audio.clip_files import ARROW, PARQUET, Columns, is_audio, is_label, list_files
from prime_train.trainer.audio.clip_folders import LABELS
from prime_train.trainer.audio.row_index import find_index

# Parts of a name that a column with labels has; another column of integers may be a time or an identifier.
_NAMES = ("label", "class", "code", "species", "category", "target")
_MOST_LINE_BYTES = 2**16


def find_columns(path: Path) -> Columns:
    """The columns with clips and labels, those that the data set declares before those that have such a name.

    `label` is None where no column is one. Raises UserError for a path that does not exist.
    """
    files = list_files(path)
    table = next((file for file in files if file.suffix in (ARROW, PARQUET)), None)
    if table is None:
        return Columns(label=_find_in_folder(path if path.is_dir() else path.parent))
    try:
        schema = _read_schema(table)
    except (pa.ArrowInvalid, OSError):
        return Columns()  # what is wrong with it is described by who reads it
    declared = _read_declared(schema)
    clips = [field.name for field in schema if is_audio(field.type)]
    labels = [field.name for field in schema if is_label(field.type) and not pa.types.is_null(field.type)]
    own = [name for name in clips if declared.get(name) == "Audio"]
    classes = [name for name in labels if declared.get(name) == "ClassLabel"]
    named = [name for name in labels if any(part in name.lower() for part in _NAMES)]
    return Columns(
        audio=next((name for name in ("audio", *own, *clips) if name in clips), "audio"),
        label=next((name for name in ("label", *classes, *named) if name in labels), None),
    )


def refuse_other_names(paths: Sequence[Path], columns: Columns) -> None:
    """Raise UserError where two files declare other names for the same labels, as `datasets` writes them.

    Files that declare none are not compared.
    """
    first: tuple[Path, Sequence[str]] | None = None
    seen: set[bytes] = set()
    for file in (file for path in paths for file in _list_different(path, columns)):
        with suppress(pa.ArrowInvalid, OSError):  # what is wrong with it is described by who reads it
            declared = (_read_schema(file).metadata or {}).get(b"huggingface", b"")
            if declared in seen:
                continue
            seen.add(declared)
            names = _find_names(declared, columns.label)
            if names and first is None:
                first = (file, names)
            if first is not None and names and names != first[1]:
                raise _refuse_names(first, file, names)


def _list_different(path: Path, columns: Columns) -> list[Path]:
    """The tables of a source, or one of them where an index knows that all declare the same."""
    files = [file for file in list_files(path) if file.suffix in (ARROW, PARQUET)]
    known = find_index(path, files, columns).read() if files else None
    return files[:1] if known is not None and known.alike else files


def _refuse_names(first: tuple[Path, Sequence[str]], file: Path, names: Sequence[str]) -> UserError:
    pairs = enumerate(zip_longest(first[1], names, fillvalue="not there"))
    label, (there, here) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
    what = f"its label {label} is {here!s:.80}, and in {first[0].name} it is {there!s:.80}"
    why, fix = "a label is the same class in all files of a run", "train on one of them, or number both by one list"
    return UserError(what, str(file), why, fix)


def _find_names(declared: bytes, label: str | None) -> Sequence[str]:
    """The names of the classes of a column, or of a list in it; none where they are not declared."""
    feature = _parse_features(declared).get(label or "")
    while isinstance(feature, dict) and "feature" in feature:
        feature = feature["feature"]
    names = feature.get("names") if isinstance(feature, dict) else None
    return names if isinstance(names, list) else ()


def _find_in_folder(folder: Path) -> str | None:
    """The first column of the table of labels that is no path; None without a table."""
    with suppress(OSError), outside.open_regular(folder / LABELS) as file:
        header = file.readline(_MOST_LINE_BYTES).decode(errors="replace")
        names = next(csv.reader([header]), [])
        return next((name for name in names if name != "path"), "label")
    return None


def _read_schema(file: Path) -> Any:
    with outside.open_regular(file):  # no pipe and no device
        pass
    if file.suffix == PARQUET:
        import pyarrow.parquet as pq

        return pq.read_schema(file)
    with pa.memory_map(str(file)) as mapped:
        try:
            return pa.ipc.open_file(mapped).schema
        except pa.ArrowInvalid:
            mapped.seek(0)
            return pa.ipc.open_stream(mapped).schema


def _read_declared(schema: Any) -> Mapping[str, Any]:
    """Column -> kind, as Hugging Face's `datasets` writes them into a file: Audio, ClassLabel, Value."""
    features = _parse_features((schema.metadata or {}).get(b"huggingface", b""))
    return {name: feature.get("_type") for name, feature in features.items() if isinstance(feature, dict)}


def _parse_features(declared: bytes) -> Mapping[str, Any]:
    """Column -> what is declared of it; none for a text that declares nothing."""
    try:
        features = outside.parse_json(declared)["info"]["features"]
    except (ValueError, TypeError, KeyError):
        return {}
    return features if isinstance(features, dict) else {}
