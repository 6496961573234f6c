"""Objects in a bucket: list, read, write, delete, and prove by hash. Knows nothing of checkpoints.

Every provider is reached by its fsspec back end, which also retries. Nothing is cached, because another machine may
write to the same bucket. A folder on this machine (`local`) is written beside, synced and renamed.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.backups.settings import PROVIDERS, Provider, describe, errors_of, open_file_system
from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.installation import install_command
from prime_train.core.redaction import own_secrets, redact
from prime_train.core.rundir import write_atomic
from prime_train.spec.supervision import Backup

_MOST_OBJECTS = 1_000_000  # of one run; more is no listing of ours


class Listed(NamedTuple):
    size_bytes: int
    changed_s: float  # seconds since the epoch; 0 where the provider does not name it


class Proof(NamedTuple):
    """The hash of an object as the provider holds it. `how` names where it comes from."""

    matches: bool
    how: str


@dataclass(frozen=True, slots=True)
class Store:
    """The folder of a bucket. Names are relative to it, with slashes. Every method raises UserError on a failure."""

    backup: Backup
    root: str
    fs: Any

    @property
    def provider(self) -> Provider:
        return PROVIDERS[str(self.backup.provider)]

    def check(self) -> None:
        """Raise UserError if the bucket does not exist or cannot be reached, so that none looks like an empty one."""
        with self._errors("the bucket cannot be read"):
            bucket = str(self.backup.bucket)
            if self.backup.provider in ("s3", "b2"):
                self.fs.call_s3("head_bucket", Bucket=bucket)
            elif not self.fs.isdir(_local(bucket) if self.backup.provider == "local" else bucket):
                raise FileNotFoundError(f"no bucket {bucket}")

    def list(self, folder: str) -> dict[str, Listed]:
        """Every object below a folder, by its name relative to it. A missing folder has none."""
        where = f"{self.root}/{folder}"
        with self._errors(f"{folder} cannot be listed"):
            found = self.fs.find(where, detail=True)
        if len(found) > _MOST_OBJECTS:
            raise self._error(f"{folder} has {len(found):,} objects", "a backup of one run has less than a million")
        base = f"{self.fs._strip_protocol(where).strip('/')}/"
        return {
            str(name).strip("/").removeprefix(base): Listed(int(info.get("size") or 0), _changed_s(info))
            for name, info in found.items()
            if info.get("type") == "file" and not info.get("islink")
        }

    def read(self, name: str, most_bytes: int) -> bytes | None:
        """The content of an object; None where it is missing. Raises UserError where it has more than `most_bytes`."""
        with self._errors(f"{name} cannot be read"):
            try:
                content: bytes = self.fs.cat_file(f"{self.root}/{name}", start=0, end=most_bytes + 1)
            except FileNotFoundError:
                return None
        if len(content) > most_bytes:
            raise self._error(f"{name} has more than {most_bytes:,} bytes", "prime-train writes no such object there")
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write an object whole: a reader sees either all of it or the object before."""
        path = f"{self.root}/{name}"
        with self._errors(f"{name} cannot be written"):
            match self.backup.provider:
                case "local":
                    Path(path).parent.mkdir(parents=True, exist_ok=True)
                    write_atomic(Path(path), content, is_private=False)
                case "s3":  # the server refuses the object if it received other bytes, and stores the hash
                    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
                    kept = {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": digest}
                    self.fs.pipe_file(path, content, chunksize=2**30, **kept)
                case "b2":  # its S3 service knows no SHA-256, but checks this one
                    digest = base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
                    self.fs.pipe_file(path, content, chunksize=2**30, ContentMD5=digest)
                case _:
                    self.fs.pipe_file(path, content)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that are gone are no error."""
        paths = [f"{self.root}/{name}" for name in names]
        with self._errors("objects cannot be deleted"):
            if self.backup.provider == "local":
                for path in paths:
                    Path(path).unlink(missing_ok=True)
                _remove_empty({Path(path).parent for path in paths}, Path(_local(str(self.backup.bucket))))
                return
            for start in range(0, len(paths), 1000):
                with contextlib.suppress(FileNotFoundError):
                    self.fs.rm(paths[start : start + 1000])

    def prove(self, name: str, size_bytes: int, sha256: str, md5: str) -> Proof:
        """Compare the object that the provider holds with its hashes.

        s3: the SHA-256 that the server computed and stored. b2, gcs: the server's MD5. hf: the SHA-256 of its large
        files. Where there is none, or it differs because the server encrypts, the object is read and hashed.
        """
        path = f"{self.root}/{name}"
        with self._errors(f"{name} cannot be read"):
            try:
                stored = _stored_hash(self, path)
            except FileNotFoundError:
                return Proof(False, "it is missing")
        if stored in (sha256, md5):
            return Proof(True, "stored hash")
        content = self.read(name, size_bytes)
        return Proof(content is not None and hashlib.sha256(content).hexdigest() == sha256, "read back")

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except errors_of(self.backup.provider) as error:
            raise self._error(what, _describe_error(error)) from None

    def _error(self, what: str, why: str) -> UserError:
        hidden = own_secrets()
        fix = "check bucket, credentials and network with `prime-train backup configure --check`, then repeat"
        return UserError(redact(what, hidden), describe(self.backup), redact(why, hidden), fix, ExitCode.OUT_OF_REACH)


def open_store(backup: Backup) -> Store:
    """The store of a backup that `settings.check` accepted. Makes no request. Raises UserError without its package."""
    provider = PROVIDERS[str(backup.provider)]
    try:
        import_module(provider.module)
        fs = open_file_system(backup)
    except ModuleNotFoundError as error:
        what = f"the package {error.name or provider.package} is missing"
        why = f"copies to {backup.provider} need it"
        raise UserError(what, sys.executable, why, install_command(provider.extra), ExitCode.OUT_OF_REACH) from None
    bucket = _local(str(backup.bucket)) if backup.provider == "local" else str(backup.bucket)
    return Store(backup, "/".join(part for part in (bucket, backup.prefix) if part), fs)


def _local(bucket: str) -> str:
    return str(Path(bucket).expanduser().absolute())


def _describe_error(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _changed_s(info: dict[str, Any]) -> float:
    for key in ("LastModified", "last_modified", "mtime", "updated"):
        value = info.get(key)
        if isinstance(value, int | float):
            return float(value)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                return datetime.fromisoformat(value).timestamp()
    return 0.0


def _stored_hash(store: Store, path: str) -> str:
    """The hash that the provider has of an object, as hexadecimal; "" without one. Raises FileNotFoundError."""
    match store.backup.provider:
        case "s3" | "b2":
            bucket, _, key = path.partition("/")
            head = store.fs.call_s3("head_object", Bucket=bucket, Key=key, ChecksumMode="ENABLED")
            return _hex(head.get("ChecksumSHA256")) or str(head.get("ETag", "")).strip('"')
        case "gcs":
            return _hex(store.fs.info(path).get("md5Hash"))
        case "hf":
            lfs = store.fs.info(path).get("lfs")
            return str(getattr(lfs, "sha256", "") or (lfs.get("sha256", "") if isinstance(lfs, dict) else ""))
        case "local":
            with outside.open_regular(path) as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        case _:
            return ""


def _hex(encoded: object) -> str:
    with contextlib.suppress(ValueError):
        return base64.b64decode(str(encoded or ""), validate=True).hex()
    return ""


def _remove_empty(folders: set[Path], root: Path) -> None:
    """Remove folders below `root` that have become empty, and their empty parents."""
    for folder in folders:
        while folder != root and root in folder.parents:
            try:
                folder.rmdir()
            except OSError:
                break
            folder = folder.parent
