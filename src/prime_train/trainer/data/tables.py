"""Opens tables of documents, .jsonl, .parquet and Hugging Face datasets, with the `datasets` library: memory-mapped.

The library is imported where it is used, because that takes most of a second and a run with cached tokens does not
need it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.installation import cache_path
from prime_train.spec import Source
from prime_train.trainer.data.progress import report_reading
from prime_train.trainer.failure import first_line


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of an opened source."""

    count: int
    texts: Callable[[Sequence[int]], list[str]]
    skipped: int = 0  # files that are not text
    held_out: int = 0  # the last sections of a single document; 0 = whole documents, drawn by the seed


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert an OSError in the block to a UserError that names the file."""
    try:
        yield
    except OSError as error:
        refusal = error if isinstance(error, outside.OutsideError) else None
        why = "data.sources names it" + (f", and {refusal.why}" if refusal else "")
        fix = f"{'' if refusal else 'give this user read access (chmod +r), or '}remove it from the path"
        raise UserError(f"cannot read it: {error.strerror}", str(error.filename or path), why, fix) from error


def open_tables(files: Sequence[Path], text_field: str) -> Documents:
    """The rows of the files, which are all .jsonl or all .parquet."""
    return _documents(load_files(files), text_field, ", ".join(map(str, files[:3])))


def load_files(files: Sequence[Path]) -> Any:
    """The `datasets.Dataset` with the rows of the files, which are all .jsonl or all .parquet."""
    import datasets
    from datasets.exceptions import DatasetGenerationError

    datasets.disable_progress_bars()
    filled = [file for file in files if file.stat().st_size > 0]
    if not filled:
        raise no_text_error(str(files[0]))
    format_name = "json" if files[0].suffix == ".jsonl" else "parquet"
    names = [str(file) for file in filled]
    size_bytes = sum(file.stat().st_size for file in filled)
    try:
        with report_reading(f"{len(filled)} {format_name} files", size_bytes):
            return datasets.load_dataset(format_name, data_files=names, split="train", cache_dir=cache_path("tables"))
    except (DatasetGenerationError, ValueError, StopIteration) as error:
        if format_name == "json":
            for file in filled:
                check_lines(file)
        what = f"cannot be read as {format_name}: {first_line(error.__cause__ or error)}"
        why = "the files of one source must be complete and have the same columns"
        fix = "look at the named file; write it again, or remove it from the path"
        raise UserError(what, ", ".join(names[:3]), why, fix) from error


def check_lines(file: Path) -> None:
    """Raise UserError at the first line that is not a JSON object."""
    with reading(file), outside.open_regular(file) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                fault = "" if isinstance(json.loads(line), dict) else "it is not a JSON object"
            except (ValueError, RecursionError) as error:
                fault = str(error)
            if fault:
                what = f"not a line of JSON: {fault}"
                fix = f"correct the line, or drop it: sed -i {number}d {file.name}"
                raise UserError(what, f"{file}:{number}", "each line of a .jsonl file is one document", fix)


@dataclass(frozen=True, slots=True)
class OpenedDataset:
    """A `datasets.Dataset`, and a fingerprint of its content."""

    table: Any
    where: str  # for messages
    fingerprint: str
    size_bytes: int

    def documents(self, text_field: str) -> Documents:
        return _documents(self.table, text_field, self.where)


@lru_cache(maxsize=8)  # the tokenizer, the stream and the evaluation open it, and the Hub may be slow
def open_dataset(source: Source, name: str) -> OpenedDataset:
    """A dataset of the Hugging Face Hub, or of a local folder."""
    import datasets
    from datasets.exceptions import DatasetsError

    datasets.disable_progress_bars()
    where = f'data.sources path = "{name}"'
    folder = Path(name)
    try:
        if (folder / "dataset_dict.json").is_file() and (folder / source.split).is_dir():
            table = datasets.load_from_disk(str(folder / source.split))
        elif (folder / "state.json").is_file():
            table = datasets.load_from_disk(name)
        else:
            inside = folder.rglob("*") if folder.is_dir() else ()  # else it is a name of the Hub
            sizes = [file.stat().st_size for file in inside if file.is_file()]
            with report_reading(name, sum(sizes)):
                table = datasets.load_dataset(name, source.subset, split=source.split)
    except ConnectionError as error:
        raise UserError(
            what=f"dataset {name} cannot be reached: {first_line(error)}",
            where=where,
            why="it is neither a local folder nor in the cache of the Hugging Face libraries",
            fix=f"on a machine with a network: hf download --repo-type dataset {name} --local-dir DIR; then path = DIR",
            exit_code=ExitCode.OUT_OF_REACH,
        ) from error
    except (DatasetsError, OSError, ValueError) as error:
        why = f'the config has split = "{source.split}"' + (f', subset = "{source.subset}"' if source.subset else "")
        fix = "use a dataset on the Hub or a local folder, and a split and subset that it has"
        raise UserError(f"dataset {name} cannot be opened: {first_line(error)}", where, why, fix) from error
    return OpenedDataset(table, where, str(table._fingerprint), int(table.data.nbytes))


def _documents(table: Any, text_field: str, where: str) -> Documents:
    fields = list(table.column_names)
    if text_field not in fields:
        near = difflib.get_close_matches(text_field, fields, n=1)
        raise UserError(
            what=f'no field "{text_field}"; there are {", ".join(fields)}'
            + (f"; did you mean {near[0]}?" if near else ""),
            where=where,
            why="text_field must name the field with the text of a document",
            fix=f'text_field = "{near[0] if near else fields[0]}"',
        )
    if getattr(table.features[text_field], "dtype", None) not in ("string", "large_string"):
        what = f'field "{text_field}" is {table.features[text_field]}, not text'
        raise UserError(what, where, "documents must be text", "text_field = a field with a string in every row")
    if not len(table):
        raise no_text_error(where)
    column = table.select_columns([text_field])

    def texts(indices: Sequence[int]) -> list[str]:
        return [text or "" for text in column[list(indices)][text_field]]

    return Documents(len(column), texts)


def no_text_error(where: str) -> UserError:
    return UserError("it contains no text", where, "there is nothing to train on", "use a source that has text")
