"""The manifest and the marker of one backup: values, text, and a strict parser. Pure.

A manifest comes from a bucket that others may write to. So nothing in it is believed: sizes are bounded, names are
plain names below the step folder, hashes are hashes, the parts of a file add up to its size, and little text cannot
become many values or many bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from prime_train.core.outside import parse_json
from prime_train.spec.annotations import Ge, Gt, Le, Lt

if TYPE_CHECKING:
    from pydantic import TypeAdapter

VERSION = 1
MANIFEST = "manifest.json"
MARKER = "COMPLETE.json"
PINNED = "PINNED"
PARTS = "parts"
MOST_MANIFEST_BYTES = 64 * 2**20
MOST_MARKER_BYTES = 64 * 2**10
MOST_PART_BYTES = 2**30
_MOST_FILE_BYTES = 2**50
_MOST_FILES = 200_000
_MOST_PARTS = 1_000_000
_MOST_TIMES = 1000  # a checkpoint has so many times the bytes that are stored of it, at most; packing saves a third
_SPARE_BYTES = 2**30  # a small checkpoint may be all zeros
_LEAST_TEXT_BYTES = 8  # of a value in a manifest; a list of `[],[],[]` takes twenty times its text in memory
_SPARE_VALUES = 1000
_DEEPEST = 32  # folders in a name
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MD5 = re.compile(r"[0-9a-f]{32}")
_FOLDER = re.compile(r"step_(0|[1-9]\d{0,14})\.([0-9a-f]{16})")
_ROOT = re.compile(r"[A-Za-z0-9_.@-]+(/[A-Za-z0-9_.@-]+)*")


class ManifestError(ValueError):
    """A text that is no manifest or no marker; the message has the reason."""


class _StopAtFirst:
    """Pydantic ends at the first item that is wrong, because a hostile list has millions of them."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(source) | {"fail_fast": True}


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """A piece of a file, stored as one object that is named by the hash of what is stored."""

    sha256: str  # of the stored bytes
    md5: str  # of the stored bytes, because some providers name only this one
    stored_bytes: Annotated[int, Gt(0), Le(MOST_PART_BYTES)]
    size_bytes: Annotated[int, Gt(0), Le(MOST_PART_BYTES)]  # of the piece
    piece_sha256: str  # of the piece itself; the same as sha256 where it is not packed
    packed: bool = False  # stored as planes.pack gives it

    @property
    def object(self) -> str:
        return f"{PARTS}/{self.sha256}"


@dataclass(frozen=True, slots=True)
class File:
    """A file of the checkpoint. `root` names the folder of step folders that it is in, `name` its path below there."""

    root: str
    name: str
    size_bytes: Annotated[int, Ge(0), Le(_MOST_FILE_BYTES)]
    sha256: str
    parts: Annotated[tuple[ObjectPart, ...], _StopAtFirst()]


@dataclass(frozen=True, slots=True)
class Manifest:
    run: str
    step: int
    id: str
    saved_s: Annotated[float, Ge(0), Lt(1e12)]  # seconds since the epoch
    files: Annotated[tuple[File, ...], _StopAtFirst()]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def objects(self) -> dict[str, int]:
        """The size of each object by its name; equal parts share one."""
        return {part.object: part.stored_bytes for file in self.files for part in file.parts}

    @property
    def roots(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(file.root for file in self.files))


def folder_name(step: int, identity: str) -> str:
    return f"step_{step}.{identity}"


def parse_folder(name: str) -> tuple[int, str] | None:
    """Step and id of a backup's folder; None for any other name."""
    match = _FOLDER.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def identify(entries: Sequence[tuple[str, str, int, str]]) -> str:
    """The id of a checkpoint's content: root, name, size and SHA-256 of every file."""
    return hashlib.sha256(json.dumps(sorted(entries)).encode()).hexdigest()[:16]


def dump(manifest: Manifest) -> bytes:
    return json.dumps({"version": VERSION} | asdict(manifest), separators=(",", ":")).encode()


def dump_marker(manifest: bytes) -> bytes:
    """The marker of a manifest: it names the manifest's hash, so that neither goes with another of its kind."""
    return json.dumps({"version": VERSION, "manifest_sha256": hashlib.sha256(manifest).hexdigest()}).encode()


def parse_marker(marker: bytes, manifest: bytes) -> None:
    """Raise ManifestError unless the marker names this manifest."""
    document = _load(marker)
    if document.get("manifest_sha256") != hashlib.sha256(manifest).hexdigest():
        raise ManifestError(f"{MARKER} was written for another {MANIFEST}")


def parse(text: bytes, run: str, step: int, identity: str) -> Manifest:
    """The manifest in a text that was found in the folder of this run, step and id. Raises ManifestError."""
    document = _load(text)
    if (document.get("run"), document.get("step"), document.get("id")) != (run, step, identity):
        raise ManifestError("it was written for another run or step")
    found = _validate(text)
    if not found.files:
        raise ManifestError("it names no file")
    if len(found.files) > _MOST_FILES or sum(len(file.parts) for file in found.files) > _MOST_PARTS:
        raise ManifestError(f"it names more than {_MOST_FILES:,} files or {_MOST_PARTS:,} parts")
    for file in found.files:
        _check_file(file)
    _check_names(found.files)
    _check_objects(found)
    return found


def _load(text: bytes) -> dict[str, Any]:
    # Before it is read, because each value takes memory, however short its text is.
    if text.count(b",") + text.count(b"[") + text.count(b"{") > len(text) // _LEAST_TEXT_BYTES + _SPARE_VALUES:
        raise ManifestError("it has more values than a text of its size may have")
    try:
        document = parse_json(text)
    except ValueError as error:
        raise ManifestError(f"it is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise ManifestError("it is no JSON object")
    if document.get("version") != VERSION:
        raise ManifestError(f"its version is {document.get('version')!r:.40}, and this prime-train reads {VERSION}")
    return document


def _validate(text: bytes) -> Manifest:
    """The manifest with every value of its type and within its limits. Raises ManifestError."""
    from pydantic import ValidationError

    try:
        return _adapter().validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise ManifestError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@cache
def _adapter() -> TypeAdapter[Manifest]:
    """Made once, because that takes as long as reading a hundred manifests."""
    from pydantic import TypeAdapter  # lazy, because most commands read none

    return TypeAdapter(Manifest)


def _check_file(file: File) -> None:
    if not is_safe_root(file.root):
        raise ManifestError(f"{file.root[:100]!r} is no folder of checkpoints")
    if not is_safe_name(file.name):
        raise ManifestError(f"{file.name[:100]!r} is no name below a step folder")
    if sum(part.size_bytes for part in file.parts) != file.size_bytes:
        raise ManifestError(f"the parts of {file.name} do not add up to {file.size_bytes} bytes")
    hashes = [file.sha256, *(digest for part in file.parts for digest in (part.sha256, part.piece_sha256))]
    if not all(map(_SHA256.fullmatch, hashes)) or not all(_MD5.fullmatch(part.md5) for part in file.parts):
        raise ManifestError(f"{file.name} has a hash that is no hash")
    for part in file.parts:
        is_same = part.size_bytes == part.stored_bytes and part.piece_sha256 == part.sha256
        if not part.packed and not is_same:
            raise ManifestError("sizes or hashes of a part contradict each other")
    if len(file.parts) == 1 and file.parts[0].piece_sha256 != file.sha256:
        raise ManifestError(f"{file.name} has another hash than its only part")


def is_safe_name(name: str) -> bool:
    """Whether a name is a relative path of plain parts: no way out of its folder, no control characters."""
    parts = name.split("/")
    return (
        0 < len(name) <= 1000
        and len(parts) <= _DEEPEST
        and all(part not in ("", ".", "..") and len(part.encode("utf-8", "replace")) <= 255 for part in parts)
        and name.isprintable()
        and "\\" not in name
        and name.encode("utf-8", "replace").decode() == name
    )


def is_safe_root(root: str) -> bool:
    return len(root) <= 1000 and bool(_ROOT.fullmatch(root)) and is_safe_name(root)


def _check_names(files: Sequence[File]) -> None:
    """Each path occurs once, and none is both a file and a folder."""
    paths = [f"{file.root}/step/{file.name}" for file in files]
    known = set(paths)
    if len(known) != len(paths):
        raise ManifestError("it names a file twice")
    for path in paths:
        parents = path.split("/")[:-1]
        if any("/".join(parents[:count]) in known for count in range(1, len(parents) + 1)):
            raise ManifestError(f"{path[:100]!r} is below a file")


def _check_objects(found: Manifest) -> None:
    seen: dict[str, ObjectPart] = {}
    for part in (part for file in found.files for part in file.parts):
        if seen.setdefault(part.sha256, part) != part:
            raise ManifestError("one object is named with two contents")
    # A few small objects that are named again and again would fill a disk.
    if found.size_bytes > _MOST_TIMES * sum(part.stored_bytes for part in seen.values()) + _SPARE_BYTES:
        raise ManifestError(f"its files have more than {_MOST_TIMES:,} times the bytes that are stored")
