"""Keeps what was read of runs that have ended, so that a controller shows a thousand of them at once. SQLite, in WAL.

It is only an index: it is rebuilt from the run directories where it is missing, damaged or of another version, and an
entry counts only while the files of the run's events are unchanged.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.control.followed import Fingerprint
from prime_train.core.outside import parse_json

_VERSION = 1  # of the documents; another one is rebuilt
_MOST_BYTES = 1 << 20  # of a document
_CREATE = "CREATE TABLE IF NOT EXISTS runs (name TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, document TEXT NOT NULL)"


class IndexedRun(NamedTuple):
    """A run that has ended, as it was read when its events had this fingerprint."""

    fingerprint: Fingerprint
    row: dict[str, Any]
    failures: list[dict[str, Any]]


class Index:
    """The index file of a folder of runs. One thread uses it."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where the file can neither be opened nor replaced."""
        self._path = path
        try:
            self._database = self._open()
        except sqlite3.DatabaseError:  # damaged, or no database
            self._remove()
            try:
                self._database = self._open()
            except sqlite3.Error as error:
                raise OSError(f"the index cannot be written: {error}") from error

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, check_same_thread=False, timeout=2.0)
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=OFF")  # what a crash loses is read again from the runs
            [(version,)] = database.execute("PRAGMA user_version")
            if version != _VERSION:
                database.execute("DROP TABLE IF EXISTS runs")
                database.execute(f"PRAGMA user_version={_VERSION}")
            database.execute(_CREATE)
            database.commit()
        except BaseException:
            database.close()
            raise
        return database

    def _remove(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)

    def load(self) -> dict[str, IndexedRun]:
        """Every run by its name. Entries that are damaged are left out."""
        found = {}
        with contextlib.suppress(sqlite3.Error):
            for name, fingerprint, text in self._database.execute("SELECT name, fingerprint, document FROM runs"):
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    document = parse_json(text, not_finite=True)
                    found[str(name)] = IndexedRun(str(fingerprint), document["row"], document["failures"])
        return found

    def keep(self, runs: Mapping[str, IndexedRun]) -> None:
        """Add or replace runs. A disk that takes no more costs a later controller some time, and nothing else."""
        rows = []
        for name, run in runs.items():
            text = json.dumps({"row": run.row, "failures": run.failures}, separators=(",", ":"))
            if len(text) <= _MOST_BYTES:
                rows.append((name, run.fingerprint, text))
        with contextlib.suppress(sqlite3.Error):
            self._database.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", rows)
            self._database.commit()

    def drop(self, names: list[str]) -> None:
        """Forget runs whose folders are gone."""
        with contextlib.suppress(sqlite3.Error):
            self._database.executemany("DELETE FROM runs WHERE name = ?", [(name,) for name in names])
            self._database.commit()

    def close(self) -> None:
        self._database.close()
