"""Judges the bucket of a run that is killed: by files and hashes of its own, and by a restore. A folder is the bucket.

What is in the bucket is read here without the code that is tested. The content of each step is known, because the loop
of `hooks/arithmetic.py` depends on the seed alone.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prime_train.backups import inventory, pull
from prime_train.backups.store import open_store
from prime_train.checkpoints import in_use, layout
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.core.errors import UserError
from prime_train.spec.supervision import Backup
from tests.fuzz.templates import hashes

RUN = "small"
Truth = Mapping[int, Mapping[str, str]]  # step -> name -> SHA-256 of a file of its checkpoint, without the manifest


def read_truth(checkpoints: Path) -> dict[int, dict[str, str]]:
    """The hashes of every checkpoint of an undisturbed run, which kept all of them."""
    found = layout.scan(checkpoints)
    return {one.step: hashes(one.path, torch=False) for one in found if one.complete}


@dataclass
class JudgedBucket:
    """The bucket of one case, and the newest step that it had."""

    folder: Path
    aside: Path  # to restore to
    truth: Truth
    newest: int = 0
    restored: int = field(default=0)  # how many restores were compared

    def __post_init__(self) -> None:
        self.folder.mkdir()

    @property
    def config(self) -> str:
        """Keys of the table [prime_train.backup]."""
        return f'provider = "local"\nbucket = "{self.folder}"\n'

    def judge(self, *, is_quiet: bool) -> Iterator[str]:
        """What is wrong. `is_quiet`: nothing writes into the bucket now, so every backup can be compared."""
        store = open_store(Backup(provider="local", bucket=str(self.folder)))
        places = StepPlaces(self.aside, (self.aside / "checkpoints",))
        complete = [one for one in inventory.list_backups(store, RUN, places) if one.complete]
        if is_quiet:
            for one in complete:
                if self._read(self.folder / one.folder) != self.truth[one.step]:
                    yield f"the backup of step {one.step} counts as complete and is not"
        newest = max((one.step for one in complete), default=0)
        if newest < self.newest:
            yield f"the newest backup was step {self.newest} and is step {newest}"
        self.newest = max(self.newest, newest)
        if newest:
            yield from self._judge_restore(newest)

    def _judge_restore(self, newest: int) -> Iterator[str]:
        shutil.rmtree(self.aside, ignore_errors=True)
        places = StepPlaces(self.aside, (self.aside / "checkpoints",))
        store = open_store(Backup(provider="local", bucket=str(self.folder)))
        try:
            pulled = pull.restore_newest(store, RUN, places)
        except (UserError, OSError) as error:
            yield f"the backup of step {newest} cannot be restored: {error}"
            return
        if pulled is None or pulled.step < newest:
            yield f"the backup of step {newest} is not restored: {pulled}"
        elif hashes(self.aside / "checkpoints" / f"step_{pulled.step}", torch=False) != self.truth[pulled.step]:
            yield f"the backup of step {pulled.step} is restored with another content"
        self.restored += 1

    def _read(self, folder: Path) -> dict[str, str]:
        """The hash of each file of a backup, put together from its objects."""
        found = {}
        for file in json.loads((folder / "manifest.json").read_bytes())["files"]:
            if file["name"] != "COMPLETE.json":
                parts = (folder / "parts" / part["sha256"] for part in file["parts"])
                found[file["name"]] = hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()
        return found


def list_wrong_checkpoints(checkpoints: Path, truth: Truth) -> Iterator[str]:
    """Checkpoints on the disk that count as complete and have another content than the step."""
    for one in layout.scan(checkpoints):
        # A process that outlives the kill may be deleting it, so it is wrong only if it is so twice.
        tries = (layout.inspect(one.path).complete and _differs(one.path, truth[one.step]) for _ in range(2))
        if one.complete and all(tries):
            yield f"step {one.step} on the disk counts as complete and is not"


def _differs(folder: Path, truth: Mapping[str, str]) -> bool:
    try:
        found = hashes(folder, torch=False)
    except FileNotFoundError:  # it was deleted meanwhile
        return False
    # Who copies or packs it has a mark in it.
    return {name: sha256 for name, sha256 in found.items() if not in_use.is_mark(name)} != truth
