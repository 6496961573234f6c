"""Says what is left to pack in a checkpoint, in what portions, and what packing saves. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from prime_train.checkpoints import layout, lossy, moments, planes
from prime_train.checkpoints.lossy import Edits
from prime_train.checkpoints.packed import Entry

SUFFIX = ".planes."  # between the name of a file and the first byte of its segment
_SAMPLES = 64  # pieces of a file that tell how well it packs: within half a percent, measured on 500 MB


@dataclass(frozen=True, slots=True)
class Sizes:
    """In what portions files are packed."""

    segment_bytes: int = 256 * 2**20  # the room that packing and restoring need beside the checkpoint
    piece_bytes: int = 2**18  # measured: pieces of 512 KiB save 16.0 %, these 16.4 %, of 128 KiB 16.5 % in more time
    pieces_together: int = 4  # read and packed by one thread at a time
    smallest_bytes: int = 64 * 2**10  # a smaller file stays as it is


DEFAULT = Sizes()
NO_EDITS: Mapping[str, Edits] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Stored:
    """What a checkpoint takes on the disk, and what its files had when it was saved."""

    stored_bytes: int
    size_bytes: int

    @property
    def saved_bytes(self) -> int:
        return self.size_bytes - self.stored_bytes

    @property
    def saved(self) -> float:
        """The part that packing saves, from 0 to 1."""
        return 1 - self.stored_bytes / self.size_bytes if self.size_bytes else 0.0


def stored(folder: Path) -> Stored:
    """What the manifest says of a complete checkpoint; without the manifest itself."""
    entries = layout.entries(folder)
    return Stored(sum(entry.stored_bytes for entry in entries), sum(entry.size_bytes for entry in entries))


def is_packed(folder: Path) -> bool:
    """Whether a file of a complete checkpoint must be restored before it can be loaded."""
    return any(entry.segments for entry in layout.entries(folder))


def work_bytes(folder: Path, sizes: Sizes = DEFAULT) -> int:
    """Bytes that are left to pack: what `compress` will tell `on_read` in all."""
    return sum(entry.kept_bytes for entry in to_pack(folder, sizes))


def is_lossy(folder: Path) -> bool:
    """Whether moments of a complete checkpoint were rounded to bf16."""
    return any(entry.sha256_as_saved for entry in layout.entries(folder))


def packed_without_loss(folder: Path, sizes: Sizes = DEFAULT) -> list[Entry]:
    """Files to be restored before moments are rounded: of a checkpoint of which that is done there are none."""
    if is_lossy(folder) and not to_pack(folder, sizes):
        return []
    return [entry for entry in layout.entries(folder) if entry.segments and not entry.sha256_as_saved]


def lossy_work_bytes(folder: Path, sizes: Sizes = DEFAULT) -> int:
    """What `compress_lossy` will tell `on_read` in all."""
    again = packed_without_loss(folder, sizes)
    return work_bytes(folder, sizes) + sum(2 * entry.size_bytes - 2 * entry.kept_bytes for entry in again)


def edits(folder: Path, sizes: Sizes = DEFAULT) -> dict[str, Edits]:
    """What rounding the moments changes in each file of which nothing is rounded or packed.

    UserError where no moments are found in a checkpoint of which none is rounded. Reads them all.
    """
    files = [entry.name for entry in to_pack(folder, sizes) if not entry.sha256_as_saved and not entry.segments]
    return moments.edits(folder, files, needed=not is_lossy(folder)) if files else {}


def packed_bytes(folder: Path) -> int:
    """Bytes that are packed: what `restore` will tell `on_read` in all."""
    return sum(entry.size_bytes - entry.kept_bytes for entry in layout.entries(folder))


def expected(folder: Path, sizes: Sizes = DEFAULT, edits: Mapping[str, Edits] = NO_EDITS) -> Stored:
    """What a complete checkpoint will take once it is packed, by packing some pieces of each file. Changes nothing.

    `edits`, by the name of a file, are what is changed in it before.
    """
    before = stored(folder)
    saved_bytes = 0.0
    for entry in to_pack(folder, sizes):
        step_bytes = max(sizes.piece_bytes, entry.kept_bytes // _SAMPLES)
        sample_bytes = packed_bytes = 0
        with open(folder / entry.name, "rb", buffering=0) as file:
            for start in range(0, entry.kept_bytes, step_bytes):
                stop = min(start + sizes.piece_bytes, entry.kept_bytes)
                piece = lossy.read(file.fileno(), start, stop, edits.get(entry.name, entry.edits))
                sample_bytes += len(piece)
                packed_bytes += len(planes.pack(piece))
        saved_bytes += entry.kept_bytes * (1 - packed_bytes / sample_bytes) if sample_bytes else 0.0
    return Stored(before.stored_bytes - round(saved_bytes), before.size_bytes)


def leftovers(folder: Path) -> list[Path]:
    """What a killed call left in the folder that its manifest does not name: segments, and half a manifest."""
    entries = layout.entries(folder)
    named = {folder / name for entry in entries for name in (entry.name, *(s.file for s in entry.segments))}
    found = set(folder.glob(f".{layout.MANIFEST}.*.tmp"))
    for path in (folder / entry.name for entry in entries):
        found |= {left for left in path.parent.iterdir() if left.name.startswith(path.name + SUFFIX)}
    return sorted(found - named)


def unfinished(folder: Path) -> bool:
    """Whether a killed call left something for the next one to clear."""
    longer = (e for e in layout.entries(folder) if e.segments and _size(folder / e.name) > e.kept_bytes)
    return bool(leftovers(folder)) or any(longer)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def to_pack(folder: Path, sizes: Sizes) -> list[Entry]:
    """Files of which something is left to pack. Not one beside a saved file whose name its segments would have."""
    entries = layout.entries(folder)
    large = [entry for entry in entries if entry.kept_bytes and entry.size_bytes >= sizes.smallest_bytes]
    return [entry for entry in large if not any(other.name.startswith(entry.name + SUFFIX) for other in entries)]
