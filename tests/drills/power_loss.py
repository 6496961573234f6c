"""Reads the recording of power_loss.c: what the disk holds if the power is cut after a prefix of it. Reads no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Found(NamedTuple):
    """A file or folder at the time of a record. `identity` differs between two files of one name."""

    is_folder: bool
    identity: str
    size_bytes: int


class Kept(NamedTuple):
    """The content of a file after the cut: the start of a copy, and zeros up to `size_bytes`. No copy: it is empty."""

    copy: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Record:
    """The folder after one change. `number` is also the name of the copy, if the change was a sync of a file."""

    number: str
    what: str  # sync (of a file), names (sync of a folder), rename, unlink, rmdir, truncate
    identity: str
    path: str
    tree: dict[str, Found] = field(default_factory=dict)


def read(log: Path) -> Iterator[Record]:
    record: Record | None = None
    with open(log / "log", encoding="utf-8") as file:
        for line in file:
            kind, *words = line.rstrip("\n").split("\t")
            if kind == "R":
                if record is not None:
                    yield record
                number, what, identity, path = words
                record = Record(number, what, identity, path)
            elif record is not None:
                record.tree[words[3]] = Found(words[0] == "d", words[1], int(words[2]))
    if record is not None:
        yield record


State = dict[str, Kept]  # by path


def states(root: Path, log: Path) -> Iterator[tuple[Record, str, State]]:
    """Three states after each record.

    "strict": only what was synced has reached the disk: the content of a file by its own sync, its name by the sync of
    its folder. "short" and "padded": every name has reached it in order, as with a journal, but content only by a sync;
    what was not synced is missing, or reads as zeros.
    """
    copies: dict[str, str] = {}
    sizes: dict[str, int] = {}
    names: dict[str, dict[str, Found]] = {}
    for record in read(log):
        if record.what == "sync":
            copies[record.identity] = record.number
            sizes[record.number] = (log / record.number).stat().st_size
        elif record.what == "names":
            names[record.identity] = {
                path: found for path, found in record.tree.items() if path.rpartition("/")[0] == record.path
            }
        own = record.tree.get(str(root))
        yield record, "strict", dict(_strict(own.identity if own else "", names, copies, sizes))
        files = {path: found for path, found in record.tree.items() if not found.is_folder}
        yield record, "short", {path: _short(found, copies, sizes) for path, found in files.items()}
        yield (
            record,
            "padded",
            {path: Kept(copies.get(found.identity, ""), found.size_bytes) for path, found in files.items()},
        )


def _short(found: Found, copies: dict[str, str], sizes: dict[str, int]) -> Kept:
    copy = copies.get(found.identity, "")
    return Kept(copy, min(sizes[copy], found.size_bytes) if copy else 0)


def _strict(
    folder: str, names: dict[str, dict[str, Found]], copies: dict[str, str], sizes: dict[str, int], above: str = ""
) -> Iterator[tuple[str, Kept]]:
    for path, found in names.get(folder, {}).items():
        here = f"{above}/{Path(path).name}" if above else path  # a folder that was renamed has its former name
        if found.is_folder:
            yield from _strict(found.identity, names, copies, sizes, here)
        else:
            copy = copies.get(found.identity, "")
            yield here, Kept(copy, sizes[copy] if copy else 0)


def write(state: State, log: Path, folder: Path, target: Path) -> None:
    """Write the files below `folder` of a state to `target`. Files that were synced completely are links to copies."""
    target.mkdir(parents=True, exist_ok=True)
    for path, kept in state.items():
        place = target / Path(path).relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        copy = log / kept.copy if kept.copy else None
        if copy is not None and copy.stat().st_size == kept.size_bytes:
            place.hardlink_to(copy)
        else:
            content = copy.read_bytes()[: kept.size_bytes] if copy is not None else b""
            place.write_bytes(content.ljust(kept.size_bytes, b"\0"))
