"""Finds the documents of a data source and reads them by index. Never tokenises, never orders.

`locate` reads only names, sizes and times of files, so that a run with cached tokens never reads the text.
"""

from __future__ import annotations

import bisect
import glob
import itertools
import os
import re
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.spec import Source
from prime_train.trainer.cache import Opened, Origin, digest
from prime_train.trainer.data import tables
from prime_train.trainer.data.tables import Documents as Documents
from prime_train.trainer.data.tables import reading as reading

SECTION_CHARACTERS = 2**16  # about 16,000 tokens: longer than most sequences, and a thousand fit easily in memory


TEXT_SUFFIXES = (".txt", ".jsonl", ".parquet")
TOKEN_SUFFIXES = (".bin", ".npy")
NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


def locate(source: Source) -> Origin[Documents]:
    """Find the documents of a source without reading them. Raises UserError where there are none."""
    match source.kind:
        case "python-stdlib":
            root = Path(sysconfig.get_path("stdlib"))
            files = library_files(root)
            if not files:
                what = "this Python has no source of its standard library"
                fix = 'use another Python, or kind = "files" with a path to your own text'
                raise UserError(what, str(root), 'data.sources kind = "python-stdlib" reads its .py files', fix)
            return origin_of("python-stdlib", source, root, files, lambda: read_library(files))
        case "files":
            root, files = matching_files(required_path(source))
            return origin_of(str(source.path), source, root, files, lambda: open_files(files, source.text_field))
        case "hf-dataset":
            return locate_dataset(source, lambda opened: opened.documents(source.text_field))
        case "tokens":
            root, files = token_files(source)
            return origin_of(str(source.path), source, root, files, partial(_refuse_text, str(source.path)))
        case "demonstrations":
            what = "demonstrations are chats, not documents"
            why = "a pretraining run reads documents of text"
            raise UserError(what, 'data.sources kind = "demonstrations"', why, 'run.kind = "sft"')
        case "audio" | "chirps":
            what, why = "clips are no documents", "a pretraining run reads documents of text"
            raise UserError(what, f'data.sources kind = "{source.kind}"', why, 'run.kind = "audio"')


def token_files(source: Source) -> tuple[Path, list[Path]]:
    """(folder, files in a fixed order) of a source of tokens. Raises UserError where there are none."""
    return matching_files(required_path(source), TOKEN_SUFFIXES, "tokens")


def _refuse_text(name: str) -> Documents:
    fix = "tokenizer.path = the folder of the tokenizer that wrote the files"
    raise UserError("its files have tokens, and no text", name, "a tokenizer is trained on text", fix)


def origin_of(
    name: str, source: Source, root: Path, files: Sequence[Path], opener: Callable[[], Opened]
) -> Origin[Opened]:
    """The origin of local files, with fingerprints of their names, sizes and times."""
    with reading(root):
        stats = [file.stat() for file in files]
    kept = [source.kind, source.text_field, source.subset, source.split]
    named = [(os.path.relpath(file, root), stat.st_size) for file, stat in zip(files, stats, strict=True)]
    return Origin(
        name,
        fingerprint=digest([kept, str(root), named, [stat.st_mtime_ns for stat in stats]]),
        identity=digest([kept, named]),
        size_bytes=sum(stat.st_size for stat in stats),
        open=opener,
    )


def library_files(root: Path) -> list[Path]:
    """Python files of a standard library, without installed packages and tests, in a fixed order."""
    found: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in NOT_LIBRARY]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(found)


def read_library(files: Sequence[Path]) -> Documents:
    """The texts of the files, in memory (about 12 MB). Files that are not UTF-8 or are blank are skipped."""
    texts: list[str] = []
    skipped = 0
    for file in files:
        with reading(file):
            content = outside.read_bytes(file, outside.LOG_BYTES)
        try:
            texts.append(content.decode("utf-8"))
        except UnicodeDecodeError:
            skipped += 1
    return documents_of([text for text in texts if text.strip()], skipped=skipped)


def documents_of(texts: Sequence[str], skipped: int = 0, held_out: int = 0) -> Documents:
    """Documents whose texts are in memory."""
    return Documents(len(texts), lambda indices: [texts[index] for index in indices], skipped, held_out)


def matching_files(path: str, suffixes: Sequence[str] = TEXT_SUFFIXES, kind: str = "files") -> tuple[Path, list[Path]]:
    """(folder, files in a fixed order) for a file, a folder or a glob. Raises UserError where nothing matches."""
    named = Path(path)
    with reading(named):
        if named.is_dir():
            os.scandir(named).close()  # raises for an unreadable folder, which rglob would treat as empty
            candidates = [file for file in named.rglob("*") if not file.name.startswith(".")]
        else:
            candidates = [named] if named.exists() else [Path(match) for match in glob.glob(path, recursive=True)]  # noqa: PTH207 - the pattern is absolute
        present = [file for file in candidates if not file.is_dir()]
    files = sorted(file for file in present if file.suffix in suffixes)
    if not files:
        others = sorted({file.suffix for file in present if file.suffix})
        what = f"no {', '.join(suffixes)} file matches" + (f"; found {', '.join(others[:5])}" if others else "")
        why = f"a source of kind {kind} is a file, a folder or a glob of these types"
        fix = "give a path that has such files, relative to the working directory or absolute"
        raise UserError(what, f'data.sources path = "{path}"', why, fix)
    return Path(os.path.commonpath([file.parent for file in files])), files


def open_files(files: Sequence[Path], text_field: str) -> Documents:
    """Each .txt file is a document; each line of a .jsonl and each row of a .parquet file is one."""
    parts: list[Documents] = []
    for suffix, found in itertools.groupby(sorted(files, key=lambda file: file.suffix), lambda file: file.suffix):
        group = list(found)
        for file in group:
            with reading(file), outside.open_regular(file):
                pass  # an unreadable file or a pipe raises now, not in the middle of the training
        if suffix == ".txt":
            parts.append(Documents(len(group), partial(_texts, group)))
        else:
            parts.append(tables.open_tables(group, text_field))
    return parts[0] if len(parts) == 1 else _join(parts)


def _texts(files: Sequence[Path], indices: Sequence[int]) -> list[str]:
    return [read_text(files[index]) for index in indices]


def _join(parts: Sequence[Documents]) -> Documents:
    ends = list(itertools.accumulate(part.count for part in parts))

    def texts(indices: Sequence[int]) -> list[str]:
        found = [""] * len(indices)
        for number, part in enumerate(parts):
            mine = [at for at, index in enumerate(indices) if bisect.bisect_right(ends, index) == number]
            before = ends[number] - part.count
            for at, text in zip(mine, part.texts([indices[at] - before for at in mine]), strict=True):
                found[at] = text
        return found

    return Documents(ends[-1], texts)


def read_text(file: Path) -> str:
    """The text of a file. Raises UserError where it cannot be read or is not UTF-8."""
    with reading(file):
        content = outside.read_bytes(file, outside.LOG_BYTES)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"byte {error.start} is not UTF-8"
        fix = f"convert it: iconv -f LATIN1 -t UTF-8 {file.name} > converted.txt"
        raise UserError(what, str(file), "text in another encoding would be read as wrong characters", fix) from error


def required_path(source: Source) -> str:
    if source.path is not None:
        return source.path
    where = f'data.sources kind = "{source.kind}"'
    raise UserError("path is not set", where, why="this kind of source needs a path", fix='path = "..."')


def locate_dataset(source: Source, opener: Callable[[tables.OpenedDataset], Opened]) -> Origin[Opened]:
    """A dataset of the Hub, or of a local folder. A local one is opened later."""
    name = required_path(source)
    if Path(name).is_dir():
        root = Path(name)
        files = sorted(file for file in root.rglob("*") if file.is_file() and not file.name.startswith("."))
        return origin_of(name, source, root, files, lambda: opener(tables.open_dataset(source, name)))
    opened = tables.open_dataset(source, name)
    key = digest([name, source.subset, source.split, source.text_field, opened.fingerprint])
    rows = opener(opened)
    return Origin(name, key, key, opened.size_bytes, lambda: rows)


def open_documents(origin: Origin[Documents], held_out_ratio: float) -> Documents:
    """The documents of a source; for a single document its sections, the last `held_out` of them held out."""
    documents = origin.open()
    if documents.count != 1:
        return documents
    (text,) = documents.texts([0])
    if not text.strip():
        return documents  # the tokenising raises the error, as with many documents
    cut = _cut(text, held_out_ratio)
    if cut is None:
        what = f"its only document is too short to split: {len(text.split())} words"
        why = "its beginning is for training and its end is held out to measure the loss"
        raise UserError(what, origin.name, why, "give more text")
    train, held_out = list(_sections(text, 0, cut)), list(_sections(text, cut, len(text)))
    return documents_of(train + held_out, held_out=len(held_out))


def _cut(text: str, held_out_ratio: float) -> int | None:
    """Start of the held-out end, two words on both sides, so that there is a token to predict; None where impossible.

    A line end is preferred, but not one that is far away, for example in one long line under a title.
    """
    two_words = re.match(r"\s*\S+\s+\S+", text)
    if two_words is None:
        return None
    low, high = two_words.end(), len(text.rsplit(None, 2)[0]) + 1
    wanted = min(max(low, round(len(text) * (1 - held_out_ratio))), high)

    def nearest(mark: str) -> int | None:
        behind = (text.rfind(mark, low, wanted) + 1, text.find(mark, wanted, high) + 1)
        return min((place for place in behind if place), key=lambda place: abs(place - wanted), default=None)

    line, space = nearest("\n"), nearest(" ")
    if line is None or (space is not None and abs(line - wanted) > len(text) / 4):
        return space
    return line


def _sections(text: str, begin: int, end: int) -> Iterator[str]:
    """All characters [begin, end) in sections, cut after a line end or a space where possible."""
    while begin < end:
        stop = min(begin + SECTION_CHARACTERS, end)
        if stop < end:
            stop = text.rfind("\n", begin, stop) + 1 or text.rfind(" ", begin, stop) + 1 or stop
        yield text[begin:stop]
        begin = stop
