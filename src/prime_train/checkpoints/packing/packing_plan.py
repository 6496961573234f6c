"""Plans what is left to pack in a checkpoint, in what portions, and what packing saves. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from prime_train.checkpoints import layout
from prime_train.checkpoints.packing import lossy, planes
from prime_train.checkpoints.packing.lossy import Edits
from prime_train.checkpoints.packing.packed import SUFFIX, ManifestEntry
from prime_train.core import outside

_SAMPLES = 64  # pieces of a file that are packed for an estimate: within half a percent, measured on 500 MB


@dataclass(frozen=True, slots=True)
class Sizes:
    """The portions in which files are packed."""

    segment_bytes: int = 256 * 2**20  # free space that packing and restoring need beside the checkpoint
    piece_bytes: int = 2**18  # measured: 512 KiB saves 16.0 %, 256 KiB 16.4 %, 128 KiB 16.5 % but is slower
    pieces_together: int = 4  # a thread reads and packs so many at a time
    smallest_bytes: int = 64 * 2**10  # a smaller file stays as it is


DEFAULT = Sizes()


class StoredSize(NamedTuple):
    """Bytes of a checkpoint on the disk, and of its files as they were saved."""

    stored_bytes: int
    size_bytes: int

    @property
    def saved_bytes(self) -> int:
        return self.size_bytes - self.stored_bytes

    @property
    def saved(self) -> float:
        """The fraction that packing saves, from 0 to 1."""
        return 1 - self.stored_bytes / self.size_bytes if self.size_bytes else 0.0


def measure(folder: Path) -> StoredSize:
    """The size of a complete checkpoint by its manifest; the manifest itself is not counted."""
    return sum_sizes(layout.entries(folder))


def sum_sizes(entries: Iterable[ManifestEntry]) -> StoredSize:
    stored_bytes = size_bytes = 0
    for entry in entries:
        stored_bytes += entry.stored_bytes if entry.segments else entry.kept_bytes
        size_bytes += entry.size_bytes
    return StoredSize(stored_bytes, size_bytes)


def is_packed(folder: Path) -> bool:
    """Whether a file of a complete checkpoint must be restored before it can be loaded."""
    return any(entry.segments for entry in layout.entries(folder))


def work_bytes(folder: Path, sizes: Sizes = DEFAULT) -> int:
    """Bytes that are left to pack: the sum that `compress` reports to `on_read`."""
    return sum(entry.kept_bytes for entry in list_to_pack(folder, sizes))


def is_lossy(folder: Path) -> bool:
    """Whether moments of a complete checkpoint were rounded to bf16."""
    return any(entry.sha256_as_saved for entry in layout.entries(folder))


def list_to_restore(folder: Path, sizes: Sizes = DEFAULT) -> list[ManifestEntry]:
    """Files to restore before their moments are rounded; none where the rounding is complete."""
    # Rounded to its end: restoring would lose the space and gain nothing.
    if is_lossy(folder) and not list_to_pack(folder, sizes):
        return []
    return [entry for entry in layout.entries(folder) if entry.segments and not entry.sha256_as_saved]


def lossy_work_bytes(folder: Path, sizes: Sizes = DEFAULT) -> int:
    """The sum of bytes that `compress_lossy` reports to `on_read`."""
    again = list_to_restore(folder, sizes)
    return work_bytes(folder, sizes) + sum(2 * entry.size_bytes - 2 * entry.kept_bytes for entry in again)


def find_edits(folder: Path, sizes: Sizes = DEFAULT) -> dict[str, Edits]:
    """The edits that round the moments of each file that is neither rounded nor packed. UserError without moments."""
    files = [entry.name for entry in list_to_pack(folder, sizes) if not entry.sha256_as_saved and not entry.segments]
    return lossy.find_edits(folder, files, needed=not is_lossy(folder)) if files else {}


def packed_bytes(folder: Path) -> int:
    """Bytes that are packed: the sum that `restore` reports to `on_read`."""
    return sum(entry.size_bytes - entry.kept_bytes for entry in layout.entries(folder))


def estimate(folder: Path, sizes: Sizes = DEFAULT, edits: Mapping[str, Edits] | None = None) -> StoredSize:
    """The size of a complete checkpoint once packed, by packing some pieces of each file, with `edits` by file name."""
    return estimate_files(folder, layout.entries(folder), sizes, edits)


def estimate_files(
    folder: Path, entries: Sequence[ManifestEntry], sizes: Sizes = DEFAULT, edits: Mapping[str, Edits] | None = None
) -> StoredSize:
    """The size of these files below `folder` once packed."""
    before = sum_sizes(entries)
    saved_bytes = 0.0
    for entry in choose_to_pack(entries, sizes):
        # Spread over the whole file, because weights and moments pack differently.
        step_bytes = max(sizes.piece_bytes, entry.kept_bytes // _SAMPLES)
        sample_bytes = packed_bytes = 0
        with outside.open_regular(folder / entry.name, folder) as file:
            for start in range(0, entry.kept_bytes, step_bytes):
                stop = min(start + sizes.piece_bytes, entry.kept_bytes)
                piece = lossy.read(file.fileno(), start, stop, (edits or {}).get(entry.name, entry.edits))
                sample_bytes += len(piece)
                packed_bytes += len(planes.pack(piece))
        saved_bytes += entry.kept_bytes * (1 - packed_bytes / sample_bytes) if sample_bytes else 0.0
    return StoredSize(before.stored_bytes - round(saved_bytes), before.size_bytes)


def list_leftovers(folder: Path) -> list[Path]:
    """Files that a killed call left and that the manifest does not name: segments, and a partial manifest."""
    entries = layout.entries(folder)
    named = {folder / entry.name for entry in entries}
    named |= {folder / segment.file for entry in entries for segment in entry.segments}
    # A manifest that a killed process was writing has a name of its own.
    found = set(folder.glob(f".{layout.MANIFEST}.*.tmp"))
    for path in (folder / entry.name for entry in entries):
        found |= {left for left in path.parent.iterdir() if left.name.startswith(path.name + SUFFIX)}
    return sorted(found - named)


def has_leftovers(folder: Path) -> bool:
    """Whether a killed call left files that the next call deletes or cuts."""
    packed = {folder / entry.name: entry.kept_bytes for entry in layout.entries(folder) if entry.segments}
    is_longer = (path.exists() and path.stat().st_size > kept_bytes for path, kept_bytes in packed.items())
    return bool(list_leftovers(folder)) or any(is_longer)


def list_to_pack(folder: Path, sizes: Sizes) -> list[ManifestEntry]:
    """Files with bytes left to pack. Skips a file if another file has the name of one of its segments."""
    return choose_to_pack(layout.entries(folder), sizes)


def choose_to_pack(entries: Sequence[ManifestEntry], sizes: Sizes = DEFAULT) -> list[ManifestEntry]:
    """The same of the files that are given."""
    large = [entry for entry in entries if entry.kept_bytes and entry.size_bytes >= sizes.smallest_bytes]
    return [entry for entry in large if not any(other.name.startswith(entry.name + SUFFIX) for other in entries)]
