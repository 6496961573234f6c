"""Copies one complete checkpoint into the bucket: its objects, then the manifest, then the marker.

It may be killed at any moment. The next push of the same checkpoint finds the objects that are there, because each is
named by its hash, and sends the rest. Without its marker a backup is not complete.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from prime_train.backups import manifest as manifests
from prime_train.backups import source as sources
from prime_train.backups.inventory import check_run_name, inspect
from prime_train.backups.manifest import MANIFEST, MARKER, PINNED, File, Manifest, ObjectPart
from prime_train.backups.source import BackupSource, ChangedError, ContentIdentity, Hashes, Seen
from prime_train.backups.store import Store
from prime_train.checkpoints import step_folders
from prime_train.checkpoints.packing import planes
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.core import outside

_MIB = 2**20
_SMALLEST_PART_BYTES = _MIB
_PIECE_BYTES = 16 * _MIB  # that is packed at a time

Sent = Callable[[int], None]  # called with the number of bytes of the checkpoint that are in the bucket now


class Limiter:
    """Limits a rate over all threads: `take` waits until the bytes may be sent. None = no limit."""

    def __init__(
        self,
        bytes_per_s: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock, self._sleep = clock, sleep
        self._free_s = 0.0  # when everything that was taken is sent, on the monotonic clock
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> None:
        if self._bytes_per_s is None:
            return
        with self._lock:
            now_s = self._clock()
            wait_s = max(0.0, self._free_s - now_s)
            self._free_s = max(now_s, self._free_s) + size_bytes / self._bytes_per_s
        if wait_s:
            self._sleep(wait_s)


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of a push. `already`: the bucket had it."""

    step: int
    id: str
    size_bytes: int
    stored_bytes: int
    sent_bytes: int
    seconds: float
    already: bool = False


@dataclass(slots=True)
class Upload:
    """Where the checkpoints of one run go to, and how."""

    store: Store
    run: str
    places: StepPlaces
    hashes: Hashes
    packed: bool = False
    limiter: Limiter = field(default_factory=lambda: Limiter(None))

    @property
    def part_bytes(self) -> int:
        """Bytes of one object. With a limit about a second of it, so that the rate is even."""
        whole, limit = self.store.provider.part_bytes, self.store.backup.max_upload_mb_per_s
        if limit is None or self.store.backup.provider == "hf":
            return whole
        return max(_SMALLEST_PART_BYTES, min(whole, int(limit * 1e6)))


def prepare(store: Store, run: str, places: StepPlaces, hashes: Hashes) -> Upload:
    check_run_name(run)
    backup = store.backup
    rate = None if backup.max_upload_mb_per_s is None else backup.max_upload_mb_per_s * 1e6
    return Upload(store, run, places, hashes, backup.compress, Limiter(rate))


def push(upload: Upload, source: BackupSource, on_sent: Sent = lambda _: None) -> Pushed:
    """Copy a checkpoint, or what is missing of it. Raises ChangedError, UserError where the bucket fails, OSError."""
    began_s = time.monotonic()
    with sources.using(source):
        files = sources.list_files(source)
        _require_complete(source, upload.places)
        identity = sources.identify(source, upload.places, files, upload.hashes)
        folder = manifests.folder_name(source.step, identity.id)
        there = upload.store.list(f"{upload.run}/{folder}")
        before = inspect(upload.store, upload.run, folder, there, upload.places)
        if before.complete and before.manifest is not None:
            size_bytes = before.manifest.size_bytes
            on_sent(size_bytes)
            return Pushed(source.step, identity.id, size_bytes, before.stored_bytes, 0, 0.0, already=True)
        if MARKER in there:  # an object was lost, so it must not look complete while it is repaired
            upload.store.delete([f"{before.folder}/{MARKER}"])
        have = {name: listed.size_bytes for name, listed in there.items()}
        sender = _Sender(upload, before.folder, have, on_sent)
        made = _send_files(sender, source, files, identity)
        if sources.list_files(source) != files:
            raise ChangedError("it changed while it was read")
        _require_complete(source, upload.places)
    found = Manifest(upload.run, source.step, identity.id, time.time(), made)
    stored_bytes = _finish(upload, before.folder, found, pinned=source.pinned)
    seconds = round(time.monotonic() - began_s, 3)
    return Pushed(source.step, identity.id, found.size_bytes, stored_bytes, sender.sent_bytes, seconds)


def _require_complete(source: BackupSource, places: StepPlaces) -> None:
    # With names of its own a trainer has checkpoints alone, and some below the folder itself.
    parts = [path for path in source.paths if source.bases or path.parent in places.checkpoints]
    if problem := step_folders.problem(parts, places.layout):
        raise ChangedError(problem)


def _finish(upload: Upload, folder: str, found: Manifest, *, pinned: bool) -> int:
    """Write manifest and marker, once every object is seen in the bucket. Returns the stored bytes."""
    there = {name: listed.size_bytes for name, listed in upload.store.list(folder).items()}
    lost = [name for name, size_bytes in found.objects.items() if there.get(name) != size_bytes]
    if lost:
        raise ChangedError(f"{len(lost)} objects vanished from the bucket during the upload")
    text = manifests.dump(found)
    upload.store.write(f"{folder}/{MANIFEST}", text)
    if pinned:
        upload.store.write(f"{folder}/{PINNED}", b"pinned\n")
    upload.store.write(f"{folder}/{MARKER}", manifests.dump_marker(text))
    return sum(found.objects.values()) + len(text)


def _send_files(
    sender: _Sender, source: BackupSource, files: dict[tuple[str, str], Seen], identity: ContentIdentity
) -> tuple[File, ...]:
    made = []
    with sender.running():
        for (root, name), seen in sorted(files.items()):
            made.append(_send_file(sender, source.locate(root, name), root, name, seen))
            expected = identity.sha256.get((root, name))
            if expected is not None and made[-1].sha256 != expected:
                raise ChangedError(f"{name} does not match its SHA-256")
    return tuple(made)


def _send_file(sender: _Sender, path: Path, root: str, name: str, seen: Seen) -> File:
    digest, parts = hashlib.sha256(), []
    try:
        with outside.open_regular(path) as file:
            while content := file.read(sender.upload.part_bytes):
                digest.update(content)
                parts.append(sender.send(content))
    except FileNotFoundError:
        raise ChangedError(f"{name} was deleted meanwhile") from None
    if sum(part.size_bytes for part in parts) != seen.size_bytes:
        raise ChangedError(f"{name} changed while it was read")
    return File(root, name, seen.size_bytes, digest.hexdigest(), tuple(parts))


class _Sender:
    """Sends objects in threads, at most two per worker ahead. Skips those that are in the bucket."""

    def __init__(self, upload: Upload, folder: str, have: dict[str, int], on_sent: Sent) -> None:
        self.upload = upload
        self.sent_bytes = 0
        self._folder = folder
        self._have = have
        self._on_sent = on_sent
        self._waiting: deque[tuple[Future[None], int]] = deque()
        self._pool: ThreadPoolExecutor | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send until the block ends; then every object is in the bucket. Raises what a thread raised."""
        self._pool = ThreadPoolExecutor(self.upload.store.provider.workers, "backup")
        try:
            yield
            self._drain(0)
        finally:
            self._pool.shutdown(cancel_futures=True)

    def send(self, content: bytes) -> ObjectPart:
        stored = pack(content) if self.upload.packed else content
        is_packed = len(stored) < len(content)
        stored = stored if is_packed else content
        sha256 = hashlib.sha256(stored).hexdigest()
        md5 = hashlib.md5(stored, usedforsecurity=False).hexdigest()
        piece_sha256 = hashlib.sha256(content).hexdigest() if is_packed else sha256
        part = ObjectPart(sha256, md5, len(stored), len(content), piece_sha256, is_packed)
        if self._have.get(part.object) == part.stored_bytes:
            self._on_sent(part.size_bytes)
            return part
        self._have[part.object] = part.stored_bytes
        assert self._pool is not None
        self._drain(self.upload.store.provider.workers)
        self._waiting.append((self._pool.submit(self._write, part.object, stored), part.size_bytes))
        self.sent_bytes += part.stored_bytes
        return part

    def _write(self, name: str, stored: bytes) -> None:
        self.upload.limiter.take(len(stored))
        self.upload.store.write(f"{self._folder}/{name}", stored)

    def _drain(self, left: int) -> None:
        while len(self._waiting) > left:
            future, size_bytes = self._waiting.popleft()
            future.result()
            self._on_sent(size_bytes)


_LENGTH_BYTES = 4


def pack(content: bytes) -> bytes:
    """A part as packed pieces, each after its length."""
    pieces = [planes.pack(content[start : start + _PIECE_BYTES]) for start in range(0, len(content), _PIECE_BYTES)]
    return b"".join(len(piece).to_bytes(_LENGTH_BYTES, "little") + piece for piece in pieces)


def unpack(stored: bytes, size_bytes: int) -> bytes:
    """What `pack` packed into `stored`; it has `size_bytes`. Raises ValueError where it is damaged or larger."""
    found, position = bytearray(), 0
    while position < len(stored):
        length = int.from_bytes(stored[position : position + _LENGTH_BYTES], "little")
        position += _LENGTH_BYTES
        found += planes.unpack(stored[position : position + length])
        position += length
        if len(found) > size_bytes:
            raise ValueError(f"it has more than {size_bytes} bytes")
    if len(found) != size_bytes or position != len(stored):
        raise ValueError(f"it has {len(found)} of {size_bytes} bytes")
    return bytes(found)
