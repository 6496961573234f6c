"""Large values in a folder of this machine, a file for each. Opens no port."""

from __future__ import annotations

from pathlib import Path

from prime_train.bus.base import OBJECT_BYTES, BusError, BusRefused, check_object, check_subject
from prime_train.bus.message_log import lock, report_disk
from prime_train.core.outside import read_bytes
from prime_train.core.rundir import make_folder, write_atomic


class LocalObjects:
    """A bucket. `most_bytes`: of all its files; beyond that it refuses."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._files = folder / "files"
        self._most_bytes = most_bytes
        make_folder(self._files)

    def put(self, name: str, content: bytes) -> None:
        path = self._path(name)
        with report_disk(), lock(self._folder / "lock"):
            others = sum(other.stat().st_size for other in self._files.iterdir() if other != path)
            if others + len(check_object(content)) > self._most_bytes:
                raise BusRefused(f"the bucket is full: {self._most_bytes} bytes")
            write_atomic(path, content)

    def get(self, name: str) -> bytes | None:
        try:
            return read_bytes(self._path(name), OBJECT_BYTES, self._folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BusError(f"the object {name} cannot be read: {error}") from error

    def delete(self, name: str) -> None:
        with report_disk(), lock(self._folder / "lock"):
            self._path(name).unlink(missing_ok=True)

    def list_names(self) -> list[str]:
        return sorted(path.name for path in self._files.iterdir() if not path.name.startswith("."))

    def _path(self, name: str) -> Path:
        return self._files / check_subject(name)
