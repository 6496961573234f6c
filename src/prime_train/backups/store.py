"""Objects in a bucket: list, read, write, delete, and prove by hash. Knows nothing of checkpoints.

Every provider is reached by its fsspec back end, which also retries. Nothing is cached, because another machine may
write to the same bucket. A folder on this machine (`local`) is written beside, synced and renamed, and read without
following a link. One object that cannot be used is an ObjectError, a bucket that does not answer another UserError.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.backups import listing
from prime_train.backups.listing import EndlessError, Listed
from prime_train.backups.settings import PROVIDERS, Provider, describe, errors_of, open_file_system
from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.installation import install_command
from prime_train.core.redaction import own_secrets, redact
from prime_train.core.rundir import write_atomic
from prime_train.core.units import format_bytes
from prime_train.spec.supervision import Backup

_S3 = ("s3", "b2")
# What a provider answers about one object: it may not be read, is archived, or is empty and has no such range.
_OF_ONE_OBJECT = frozenset({errno.EPERM, errno.EINVAL})


class ObjectError(UserError):
    """One object is not as prime-train writes it, or may not be read. The others may be whole."""


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
            if self.backup.provider in _S3:
                self.fs.call_s3("head_bucket", Bucket=bucket)
            elif not self.fs.isdir(_local(bucket) if self.backup.provider == "local" else bucket):
                raise FileNotFoundError(f"no bucket {bucket}")

    def read_clock_s(self) -> float | None:
        """Seconds since the epoch by the clock of the provider; None where it shows none."""
        if self.backup.provider not in _S3:
            return None
        with self._errors("the bucket cannot be read"):
            answer = self.fs.call_s3("head_bucket", Bucket=str(self.backup.bucket))
        with contextlib.suppress(LookupError, TypeError, ValueError, OverflowError):
            return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp()
        return None

    def list(self, folder: str) -> dict[str, Listed]:
        """Every object below a folder, by its name relative to it. A missing folder has none."""
        where, found = f"{self.root}/{folder}", dict[str, Listed]()
        with self._errors(f"{folder} cannot be listed"):
            try:
                for name, listed in self._list(where):
                    found[name] = listed
                    if len(found) > listing.MOST_OBJECTS:
                        raise EndlessError(f"it has more than {listing.MOST_OBJECTS:,} objects")
            except EndlessError as error:
                raise self._error(f"{folder} cannot be listed: {error}", "no backups of a run have so many") from None
            except outside.OutsideError as error:
                raise self._object_error(folder, str(error)) from None
        return found

    def _list(self, where: str) -> Iterator[tuple[str, Listed]]:
        if self.backup.provider == "local":
            return listing.list_folder(where)
        return (
            listing.list_s3(self.fs, where) if self.backup.provider in _S3 else listing.list_by_fsspec(self.fs, where)
        )

    def read(self, name: str, most_bytes: int) -> bytes | None:
        """The content of an object.

        None where it is missing. Raises ObjectError for one that is no regular file, may not be read or has
        more than `most_bytes`, and UserError where the bucket fails.
        """
        try:
            with self._errors_of(name):
                content = self._read(f"{self.root}/{name}", most_bytes)
        except FileNotFoundError:
            return None
        if len(content) > most_bytes:
            raise self._object_error(name, f"it has more than {format_bytes(most_bytes)}")
        return content

    def _read(self, path: str, most_bytes: int) -> bytes:
        if self.backup.provider == "local":
            return outside.read_bytes(path, most_bytes, within=self.root)
        content: bytes = self.fs.cat_file(path, start=0, end=most_bytes + 1)
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write an object whole: a reader sees either all of it or the object before."""
        path = f"{self.root}/{name}"
        with self._errors(f"{name} cannot be written"):
            match self.backup.provider:
                case "local":
                    self._write_file(name, Path(path), content)
                case "s3":  # the server refuses the object if it received other bytes, and stores the hash
                    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
                    kept = {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": digest}
                    self.fs.pipe_file(path, content, chunksize=2**30, **kept)
                case "b2":  # its S3 service knows no SHA-256, but checks this one
                    digest = base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
                    self.fs.pipe_file(path, content, chunksize=2**30, ContentMD5=digest)
                case _:
                    self.fs.pipe_file(path, content)

    def _write_file(self, name: str, path: Path, content: bytes) -> None:
        """Raises ObjectError where a folder, a file or a link has the place of the object or of its folder."""
        try:
            # Before the folder is made, because a link on the way would have it made elsewhere.
            if path.parent.resolve() != Path(self.root).resolve() / path.parent.relative_to(self.root):
                raise outside.link_error(path.parent)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, content, is_private=False)
        except (FileExistsError, IsADirectoryError, NotADirectoryError, outside.OutsideError) as error:
            raise self._object_error(name, _describe_error(error)) from None

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that are gone are no error. Raises ObjectError for one that cannot be deleted."""
        paths = [f"{self.root}/{name}" for name in names]
        with self._errors("objects cannot be deleted"):
            if self.backup.provider == "local":
                self._delete_files(paths)
                return
            for start in range(0, len(paths), 1000):
                if self.backup.provider in _S3:
                    self._delete_keys(paths[start : start + 1000])
                    continue
                with contextlib.suppress(FileNotFoundError):
                    self.fs.rm(paths[start : start + 1000])

    def _delete_files(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                os.unlink(path)  # noqa: PTH108 - a name that is no text stays as it is; a link is not followed
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (IsADirectoryError, PermissionError) as error:
                raise self._object_error(Path(path).name, _describe_error(error)) from None
        _remove_empty({Path(path).parent for path in paths}, Path(_local(str(self.backup.bucket))))

    def _delete_keys(self, paths: Sequence[str]) -> None:
        """Exactly these keys: the back end itself would take `*` in one for a pattern."""
        bucket = str(self.backup.bucket)
        keys = [{"Key": path.removeprefix(f"{bucket}/")} for path in paths]
        answer = self.fs.call_s3("delete_objects", Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
        for failed in answer.get("Errors", ())[:1]:
            raise self._object_error(str(failed.get("Key")), str(failed.get("Message") or failed.get("Code")))

    def prove(self, name: str, size_bytes: int, sha256: str, md5: str) -> Proof:
        """Compare the object that the provider holds with its hashes.

        s3: the SHA-256 that the server computed and stored. b2, gcs: the server's MD5. hf: the SHA-256 of its large
        files. Where there is none, or it differs because the server encrypts, the object is read and hashed.
        """
        try:
            with self._errors_of(name):
                stored = _stored_hash(self, f"{self.root}/{name}")
            if stored in (sha256, md5):
                return Proof(True, "stored hash")
            content = self.read(name, size_bytes)
        except FileNotFoundError:
            return Proof(False, "it is missing")
        except ObjectError as error:
            return Proof(False, error.why)
        return Proof(content is not None and hashlib.sha256(content).hexdigest() == sha256, "read back")

    @contextlib.contextmanager
    def _errors_of(self, name: str) -> Iterator[None]:
        """Raises ObjectError for what is wrong with this object alone, and FileNotFoundError where it is missing."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(name) from None
        except errors_of(self.backup.provider) as error:
            is_local = self.backup.provider == "local"
            if is_local or isinstance(error, PermissionError) or getattr(error, "errno", None) in _OF_ONE_OBJECT:
                raise self._object_error(name, _describe_error(error)) from None
            raise self._error(f"{name} cannot be read", _describe_error(error)) from None

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

    def _object_error(self, name: str, why: str) -> ObjectError:
        hidden = own_secrets()
        what, fix = f"{name} cannot be used", "look at it, and delete it where prime-train did not write it"
        where = describe(self.backup)
        return ObjectError(redact(what, hidden), where, redact(why, hidden), fix, ExitCode.OUT_OF_REACH)


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
    if isinstance(error, outside.OutsideError):
        return str(error)
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


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
            with outside.open_regular(path, store.root) as file:
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
