"""Objects that others could put into a bucket: each makes one backup of step 50 that must not be taken for whole.

An entry has the problem by which the backup is named, as a pattern, and changes a backup that is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_train.backups import manifest as manifests
from prime_train.backups import push, sync
from prime_train.backups.manifest import MANIFEST, MARKER
from prime_train.backups.store import Store
from tests.unit.backups import scene

STEP = 50
Objects = dict[str, bytes]  # by their name below the folder of the backup
Change = Callable[[Objects], object]
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Hostile:
    name: str
    problem: str  # a pattern; "" for a backup that looks complete, and of which only the bytes are wrong
    change: Change


def write_whole(folder: Path) -> Objects:
    """The objects of a whole backup of step 50."""
    scene.write_step(folder / "here", STEP, 5000)
    upload = scene.upload(scene.local_store(folder / "bucket"), folder / "here")
    list(sync.run_round(upload, None))
    (made,) = Path(upload.store.root, scene.RUN).iterdir()
    return scene.content(made)


def plant(store: Store, whole: Objects, number: int, hostile: Hostile) -> str:
    """Write the changed backup under an id of its own; returns its folder. The marker fits, unless it is the change."""
    identity = f"{number:016x}"
    objects = dict(whole)
    document = json.loads(objects[MANIFEST]) | {"id": identity}
    objects[MANIFEST] = json.dumps(document).encode()
    objects[MARKER] = manifests.dump_marker(objects[MANIFEST])
    hostile.change(objects)
    folder = f"{scene.RUN}/step_{STEP}.{identity}"
    for name, content in objects.items():
        if store.backup.provider == "local":
            path = Path(store.root, folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        else:
            store.write(f"{folder}/{name}", content)
    return folder


def marker(content: bytes) -> Change:
    return lambda objects: objects.update({MARKER: content})


def text(content: bytes) -> Change:
    """Another manifest, for which the marker fits."""
    return lambda objects: objects.update({MANIFEST: content, MARKER: manifests.dump_marker(content)})


def document(change: Callable[[dict[str, Any]], object]) -> Change:
    """A manifest with other values, for which the marker fits."""

    def apply(objects: Objects) -> None:
        changed = json.loads(objects[MANIFEST])
        change(changed)
        text(json.dumps(changed).encode())(objects)

    return apply


def file(change: Callable[[dict[str, Any]], object]) -> Change:
    """The largest file of the manifest with other values."""
    return document(lambda found: change(max(found["files"], key=lambda one: int(one["size_bytes"]))))


def part(change: Callable[[dict[str, Any]], object]) -> Change:
    return file(lambda found: change(found["parts"][0]))


def largest(change: Callable[[bytes], bytes | None]) -> Change:
    """The largest object with other bytes, or missing."""

    def apply(objects: Objects) -> None:
        name = max((one for one in objects if one.startswith(manifests.PARTS)), key=lambda one: len(objects[one]))
        changed = change(objects.pop(name))
        if changed is not None:
            objects[name] = changed

    return apply


def without(*names: str) -> Change:
    return document(lambda found: found.update(files=[one for one in found["files"] if one["name"] not in names]))


def packed(stored: bytes, size_bytes: int, piece: bytes = b"") -> Change:
    """The largest file is one packed part with these bytes, which claim another size and the hash of a piece."""

    def apply(objects: Objects) -> None:
        sha256 = hashlib.sha256(stored).hexdigest()
        claimed = {
            "sha256": sha256,
            "md5": hashlib.md5(stored).hexdigest(),
            "stored_bytes": len(stored),
            "size_bytes": size_bytes,
            "piece_sha256": hashlib.sha256(piece).hexdigest(),
            "packed": True,
        }
        whole = {"size_bytes": size_bytes, "sha256": claimed["piece_sha256"], "parts": [claimed]}
        file(lambda found: found.update(whole))(objects)
        objects[f"{manifests.PARTS}/{sha256}"] = stored

    return apply


def name_nowhere(found: dict[str, Any]) -> None:
    """An only part that is not in the bucket."""
    absent = "1" * 64
    found.update(sha256=absent, parts=[found["parts"][0] | {"sha256": absent, "piece_sha256": absent}])


def claim_petabytes(found: dict[str, Any]) -> None:
    """A few bytes that are named again and again."""
    one = found["parts"][0] | {"packed": True, "size_bytes": manifests.MOST_PART_BYTES}
    found.update(parts=[one] * 2000, size_bytes=2000 * manifests.MOST_PART_BYTES)


MARKERS = (
    Hostile("no marker", "upload did not finish", lambda objects: objects.pop(MARKER)),
    Hostile("an empty marker", "has 0 bytes", marker(b"")),
    Hostile(
        "a marker that is one byte too large", "has 65,537 bytes", marker(b" " * (manifests.MOST_MARKER_BYTES + 1))
    ),
    Hostile("a marker of 4 MiB", "has 4,194,304 bytes", marker(b"[" * 4 * MIB)),
    Hostile("a marker that is no JSON", "no JSON", marker(b"complete")),
    Hostile("a marker that nests", "more values", marker(b"[" * 60_000)),
    Hostile("a marker that nests a little", "nests", marker(b"[" * 900 + b"]" * 900)),
    Hostile("a marker that is a list", "no JSON object", marker(b"[]")),
    Hostile("a marker that is null", "no JSON object", marker(b"null")),
    Hostile("a marker that is a number", "no JSON object", marker(b"1")),
    Hostile("a marker of another version", "version is 2", marker(b'{"version": 2}')),
    Hostile("a marker with a long version", "version is 'x", marker(b'{"version": "' + b"x" * 60_000 + b'"}')),
    Hostile("a marker without a version", "version is None", marker(b"{}")),
    Hostile("a marker without a hash", "another manifest", marker(b'{"version": 1}')),
    Hostile("a marker with a number as hash", "another manifest", marker(b'{"version": 1, "manifest_sha256": 7}')),
    Hostile("a marker with NaN", "NaN", marker(b'{"version": NaN}')),
    Hostile("a marker with 10^400", "64 bits", marker(b'{"version": 1' + b"0" * 400 + b"}")),
    Hostile("a marker that is no text", "no JSON", marker(b"\xff\xfe{}")),
    Hostile("a marker of null bytes", "no JSON", marker(bytes(100))),
    Hostile("a marker with half a character", "no JSON", marker(b'{"version": "\\ud800"}')),
)
TEXTS = (
    Hostile("no manifest", "no manifest.json", lambda objects: objects.pop(MANIFEST)),
    Hostile("an empty manifest", "has 0 bytes", text(b"")),
    Hostile("a manifest that is too large", "has 67,108,865 bytes", text(b" " * (manifests.MOST_MANIFEST_BYTES + 1))),
    Hostile("a manifest that is no JSON", "no JSON", text(b"PK\x03\x04")),
    Hostile("a manifest that nests", "more values", text(b'{"version":1,"files":' + b"[" * 200_000)),
    Hostile("a manifest of small values", "more values", text(b'{"version":1,"files":[' + b"1," * 9 * MIB + b"1]}")),
    Hostile("a manifest that is a list", "no JSON object", text(b"[1]")),
    Hostile("a manifest of another version", "version is 9", document(lambda found: found.update(version=9))),
    Hostile("a manifest of another run", "another run", document(lambda found: found.update(run="other"))),
    Hostile("a manifest of another step", "another run or step", document(lambda found: found.update(step=51))),
    Hostile("a manifest with a text as step", "another run or step", document(lambda found: found.update(step="50"))),
    Hostile("a manifest of another id", "another run or step", document(lambda found: found.update(id="f" * 16))),
    Hostile("a manifest of the future", "saved_s", document(lambda found: found.update(saved_s=1e300))),
    Hostile("a manifest with a text as time", "saved_s", document(lambda found: found.update(saved_s="now"))),
    Hostile("files that are a table", "files", document(lambda found: found.update(files={}))),
    Hostile("files that are empty", "names no file", document(lambda found: found.update(files=[]))),
    Hostile("files that are null", "files", document(lambda found: found.update(files=None))),
    Hostile(
        "a hundred thousand wrong files", r"files\.0", document(lambda found: found.update(files=["x" * 20] * 100_000))
    ),
    Hostile("no index of tensors", "no .metadata", without(".metadata")),
    Hostile("no manifest of the checkpoint", "no COMPLETE.json", without("COMPLETE.json")),
    Hostile("a key that is missing", "size_bytes", file(lambda found: found.pop("size_bytes"))),
)
FILES = (
    Hostile("a name that leads out", "no name below", file(lambda found: found.update(name="../../../tmp/x"))),
    Hostile("an absolute name", "no name below", file(lambda found: found.update(name="/etc/cron.d/x"))),
    Hostile("a name with a null byte", "no name below", file(lambda found: found.update(name="a\0b"))),
    Hostile("a name with a line end", "no name below", file(lambda found: found.update(name="a\nb"))),
    Hostile("a name that is deep", "no name below", file(lambda found: found.update(name="a/" * 400 + "b"))),
    Hostile("a name with half a character", "no JSON", file(lambda found: found.update(name="\ud800"))),
    Hostile("a name that is there twice", "twice", file(lambda found: found.update(name=".metadata"))),
    Hostile("a name below a file", "below a file", file(lambda found: found.update(name=".metadata/x"))),
    Hostile("a folder that leads out", "no folder", file(lambda found: found.update(root="../.."))),
    Hostile("a folder of another run", "has files for the folder", file(lambda found: found.update(root="weights"))),
    Hostile("a negative size", "size_bytes", file(lambda found: found.update(size_bytes=-1))),
    Hostile("a size of 2^60", "size_bytes", file(lambda found: found.update(size_bytes=2**60))),
    Hostile("a size that is a truth value", "size_bytes", file(lambda found: found.update(size_bytes=True))),
    Hostile("sizes that do not add up", "add up", file(lambda found: found.update(size_bytes=7))),
    Hostile("parts that are missing", "add up", file(lambda found: found.update(parts=[]))),
    Hostile("petabytes", "times the bytes that are stored", file(claim_petabytes)),
    Hostile("a hash that is a path", "hash", part(lambda found: found.update(sha256="../" * 20))),
    Hostile("a hash that is empty", "hash", part(lambda found: found.update(md5=""))),
    Hostile("sizes that contradict each other", "contradict", part(lambda found: found.update(stored_bytes=1))),
    Hostile("another hash of the file", "than its only part", file(lambda found: found.update(sha256="0" * 64))),
    Hostile("another hash of the piece", "contradict", part(lambda found: found.update(piece_sha256="0" * 64))),
    Hostile("an object that is nowhere", "is missing", file(name_nowhere)),
)
CONTENTS = (
    Hostile("an object that is missing", "is missing", largest(lambda _: None)),
    Hostile("an object that is cut", "of 20,000 bytes", largest(lambda content: content[:-1])),
    Hostile("an object that is too long", "of 20,000 bytes", largest(lambda content: content + b"x")),
    Hostile("an object that is empty", "of 20,000 bytes", largest(lambda _: b"")),
    Hostile("an object of other bytes", "", largest(lambda content: content[::-1])),
    Hostile("an object of null bytes", "", largest(lambda content: bytes(len(content)))),
    Hostile("a packed object that is none", "", packed(b"not packed at all", 5000)),
    Hostile("a packed object without an end", "", packed(b"\xff" * 4 + b"x" * 50, 5000)),
    Hostile("a packed object of another size", "", packed(push.pack(bytes(4999)), 5000, bytes(4999))),
    Hostile("a packed object of other bytes", "", packed(push.pack(bytes(5000)), 5000, b"other")),
    Hostile("a packed object that fills memory", "", packed(push.pack(bytes(20 * MIB)), 5000, bytes(5000))),
)
HOSTILE = (*MARKERS, *TEXTS, *FILES, *CONTENTS)


# --- what only a folder of this machine can hold ------------------------------------------------------


def special(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    """What stands in the place of an object of a backup in `folder`."""

    def apply(folder: Path) -> None:
        path = folder / name if name else folder
        if path.is_dir():
            path.rename(_aside(folder))
        else:
            path.unlink()
        make(path)

    return apply


def _aside(folder: Path) -> Path:
    return folder.with_name(f"elsewhere-{folder.name}")


def _bind(path: Path) -> None:
    """A socket; its name may have 107 bytes, so it is made from within the folder."""
    here = os.open(path.parent, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


SPECIAL: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a pipe as marker": ("named pipe", special(MARKER, os.mkfifo)),
    "a pipe as manifest": ("named pipe", special(MANIFEST, os.mkfifo)),
    "a folder as marker": ("COMPLETE.json", special(MARKER, Path.mkdir)),
    "a folder as manifest": ("manifest.json", special(MANIFEST, Path.mkdir)),
    "a socket as marker": ("socket", special(MARKER, _bind)),
    "an endless marker": ("symbolic link", special(MARKER, lambda path: path.symlink_to("/dev/zero"))),
    "an endless manifest": ("symbolic link", special(MANIFEST, lambda path: path.symlink_to("/dev/zero"))),
    "a marker that leads nowhere": ("symbolic link", special(MARKER, lambda path: path.symlink_to("nowhere"))),
    "parts that lead elsewhere": ("is missing", special("parts", lambda path: path.symlink_to(_aside(path.parent)))),
    "a backup that leads elsewhere": ("symbolic link", special("", lambda path: path.symlink_to(_aside(path)))),
    "a backup that leads to itself": ("symbolic link", special("", lambda path: path.symlink_to(path.name))),
}
