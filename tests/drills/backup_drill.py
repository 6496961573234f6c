"""Kills pushes, pulls and prunes at random moments, and proves afterwards that no backup was lost or is only a part.

The children are real processes with the real client against a real S3 server. What is in the bucket is judged here
without the code that is tested: by plain S3 calls, byte for byte.
"""

from __future__ import annotations

import functools
import json
import os
import random
import re
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import boto3

from prime_train.backups import pull, store, sync
from prime_train.backups.settings import PROVIDERS
from prime_train.checkpoints import layout, step_folders
from prime_train.spec.supervision import Backup
from tests.unit.backups import scene
from tests.unit.backups.s3_server import CREDENTIALS, serving, set_faults

_MARK = re.compile(r"\.?IN_USE\.")  # of a killed process, or the beginning of one

Ready = Callable[[], None]
Work = Callable[[Ready], None]

KEEP_LAST = 3
FAULT_RATIO = 0.3
_PART_BYTES = 48 * 1024  # so that a checkpoint has some parts
_LONGEST_S = 120.0


@dataclass
class Tally:
    """What a series of drills found."""

    kills: dict[str, int] = field(default_factory=dict)  # children that were killed before their end, by what they did
    finished: dict[str, int] = field(default_factory=dict)  # children that came to their end before the kill
    partial: int = 0  # kills that left an incomplete backup
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    not_repaired: list[str] = field(default_factory=list)

    @property
    def killed(self) -> int:
        return sum(self.kills.values())

    @property
    def ok(self) -> bool:
        return not (self.lost or self.wrong or self.not_repaired)


@dataclass
class Drill:
    """One run that is backed up to its own bucket, and the content of each of its checkpoints."""

    address: str
    root: Path
    bucket: str
    tally: Tally
    truth: dict[int, dict[str, bytes]] = field(default_factory=dict)
    duration_s: dict[str, float] = field(default_factory=dict)
    next_step: int = 10
    _seen: dict[tuple[str, str], bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._s3 = boto3.client("s3", endpoint_url=self.address)
        set_faults(self.address, 0.0)
        self._s3.create_bucket(Bucket=self.bucket)
        for _ in range(3):
            self.save()

    @property
    def backup(self) -> Backup:
        return Backup(
            provider="s3",
            bucket=self.bucket,
            prefix="drill",
            endpoint=self.address,
            keep_last=KEEP_LAST,
            delete_after_upload=True,
        )

    def save(self) -> None:
        folder = scene.write_step(self.root, self.next_step, 120_000)
        self.truth[self.next_step] = scene.content(folder)
        self.next_step += 10

    # --- what the children do ---

    def push(self, ready: Ready) -> None:
        for result in sync.run_round(scene.upload(self._open(ready), self.root), None):
            if result.did == "failed":
                raise AssertionError(result.problem)

    def prune(self, ready: Ready) -> None:
        opened = self._open(ready)
        for one in sync.plan(scene.list_backups(opened), 1, None, time.time()):
            sync.delete(opened, one.stored)

    def pull(self, ready: Ready) -> None:
        pull.restore_newest(self._open(ready), scene.RUN, scene.places(self.root / "other"))

    def _open(self, ready: Ready) -> store.Store:
        """The store with its first connection made: the work begins after that."""
        opened = store.open_store(self.backup)
        opened.check()
        ready()
        return opened

    # --- one drill ---

    def run(self, seed: int, fault_ratio: float) -> None:
        """Kill a child at a random moment, judge what is there, then let the same work come to its end."""
        drawn = random.Random(seed)
        name = ("push", "push", "pull", "prune")[seed % 4]
        work: Work = getattr(self, name)
        self._prepare(name)
        before = self.restorable()
        set_faults(self.address, fault_ratio, seed)
        after_s = drawn.random() * self.duration_s.get(name, 0.3) * (3.0 if fault_ratio else 0.9)
        was_killed, _ = run_child(work, self.root / "child.log", after_s)
        self._count(name, was_killed)
        self._judge(f"seed {seed}, {name}", before, 1 if name == "prune" else KEEP_LAST)
        set_faults(self.address, fault_ratio, seed)
        was_killed, took_s = run_child(work, self.root / "child.log", _LONGEST_S)
        if was_killed:
            self.tally.not_repaired.append(f"seed {seed}: {name} did not end within {_LONGEST_S:.0f} s")
        if not fault_ratio:
            self.duration_s[name] = max(self.duration_s.get(name, 0.0), took_s)
        self._judge(f"seed {seed}, {name} repeated", before, 1 if name == "prune" else KEEP_LAST)
        self._judge_repair(f"seed {seed}, {name} repeated", name)

    def _prepare(self, name: str) -> None:
        """Something to do for each kind of work."""
        set_faults(self.address, 0.0)
        if name == "push":
            self.save()
            self.save()
        elif name == "pull":
            shutil.rmtree(self.root / "other", ignore_errors=True)

    def _count(self, name: str, was_killed: bool) -> None:
        counts = self.tally.kills if was_killed else self.tally.finished
        counts[name] = counts.get(name, 0) + 1

    def _judge(self, what: str, before: set[int], keep: int) -> None:
        set_faults(self.address, 0.0)
        claimed_folders = self._claimed()
        whole = self.restorable()
        for step, folder in claimed_folders:
            if not self._is_whole(step, folder):
                self.tally.wrong.append(f"{what}: step {step} counts as complete and cannot be restored")
        kept = set(sorted(before | whole)[-keep:])
        self.tally.lost += [f"{what}: the backup of step {step} is gone" for step in before & kept - whole]
        here = self._complete_here(self.root)
        newest = set(sorted(self.truth)[-KEEP_LAST:])
        if keep == KEEP_LAST:
            gone = newest - here - whole
            self.tally.lost += [f"{what}: step {step} is neither here nor in the bucket" for step in gone]
        self._complete_here(self.root / "other", what)
        self.tally.partial += len({folder for _, folder in self._folders()} - {folder for _, folder in claimed_folders})

    def _judge_repair(self, what: str, name: str) -> None:
        newest = max(self.truth)
        claimed = {step for step, _ in self._claimed()}
        folders = self._folders()
        if name == "push" and claimed != set(sorted(self.truth)[-KEEP_LAST:]):
            self.tally.not_repaired.append(f"{what}: the bucket has {sorted(claimed)}, newest is {newest}")
        if name == "prune" and claimed != {max(claimed, default=0)}:
            self.tally.not_repaired.append(f"{what}: the bucket has {sorted(claimed)} after keep_last = 1")
        if name in ("push", "prune") and len(folders) != len(claimed):
            self.tally.not_repaired.append(f"{what}: remains in the bucket: {folders}")
        if name == "pull" and max(self._complete_here(self.root / "other"), default=0) != max(claimed, default=0):
            self.tally.not_repaired.append(f"{what}: the newest backup is not restored")
        left = list((self.root / "other").rglob(f"{pull.STAGING}*")) if name == "pull" else []
        if left:
            self.tally.not_repaired.append(f"{what}: {left} is left")

    # --- what is true, by plain S3 calls ---

    def _claimed(self) -> list[tuple[int, str]]:
        """What prime-train takes for complete; asked in a child, so that this process stays without threads."""
        result = self.root / "claimed.json"

        def ask(ready: Ready) -> None:
            ready()
            found = scene.list_backups(store.open_store(self.backup))
            result.write_text(json.dumps([(one.step, one.folder) for one in found if one.complete]))

        assert not run_child(ask, self.root / "child.log", _LONGEST_S)[0]
        return [(int(step), str(folder)) for step, folder in json.loads(result.read_text())]

    def _objects(self, prefix: str) -> dict[str, Any]:
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return {found["Key"]: found for page in pages for found in page.get("Contents", ())}

    def _folders(self) -> list[tuple[int, str]]:
        names = {key.split("/")[2] for key in self._objects(f"drill/{scene.RUN}/")}
        return [(int(name.split(".")[0].removeprefix("step_")), f"{scene.RUN}/{name}") for name in sorted(names)]

    def restorable(self) -> set[int]:
        """The steps with a marker and every byte of the checkpoint."""
        return {step for step, folder in self._folders() if self._is_whole(step, folder)}

    def _is_whole(self, step: int, folder: str) -> bool:
        there = self._objects(f"drill/{folder}/")
        if not {f"drill/{folder}/COMPLETE.json", f"drill/{folder}/manifest.json"} <= set(there):
            return False
        name = f"drill/{folder}/manifest.json"
        manifest = json.loads(self._read(name, there[name]["ETag"]))
        found: dict[str, bytes] = {}
        for file in manifest["files"]:
            names = [f"drill/{folder}/parts/{part['sha256']}" for part in file["parts"]]
            if not set(names) <= set(there):
                return False
            found[file["name"]] = b"".join(self._read(name, there[name]["ETag"]) for name in names)
        return found == self.truth[step]

    def _read(self, key: str, etag: str) -> bytes:
        """An object, read once for each content: `etag` is the hash that the server computed."""
        if (key, etag) not in self._seen:
            self._seen[key, etag] = self._s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return self._seen[key, etag]

    def _complete_here(self, root: Path, what: str = "") -> set[int]:
        """The complete checkpoints on the disk. Each must have the bytes that were saved."""
        places, found = scene.places(root), set()
        for one in step_folders.checkpoints(places.checkpoints, places.layout):
            if one.complete:
                found.add(one.step)
                kept = {name: text for name, text in scene.content(one.path).items() if not _MARK.match(name)}
                is_same = kept == self.truth[one.step]
                if not is_same or layout.inspect(one.path, hashes=True).problem:
                    self.tally.wrong.append(f"{what}: step {one.step} on the disk is not what was saved")
        return found


def run_child(work: Work, log: Path, kill_after_s: float) -> tuple[bool, float]:
    """Do the work in a process that is killed a while after it is ready.

    Returns whether it was killed before its end, and the seconds of its work.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            PROVIDERS["s3"] = PROVIDERS["s3"]._replace(part_bytes=_PART_BYTES)
            work(lambda: os.close(writer))
        except BaseException:
            log.write_text(traceback.format_exc())
            os._exit(1)
        os._exit(0)
    os.close(writer)
    os.read(reader, 1)  # returns when the child closes its end
    os.close(reader)
    began_s = time.monotonic()
    while time.monotonic() < began_s + kill_after_s:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return _was_killed(status, log), time.monotonic() - began_s
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    return _was_killed(os.waitpid(pid, 0)[1], log), kill_after_s


def _was_killed(status: int, log: Path) -> bool:
    if os.WIFSIGNALED(status):
        return True
    assert os.waitstatus_to_exitcode(status) == 0, log.read_text()
    return False


def run_series(first_seed: int, kills: int, root: Path) -> Tally:
    """Drills on a server of their own until so many children were killed before their end.

    In every other four of them the server fails 30 % of its calls.
    """
    tally = Tally()
    os.environ.update(CREDENTIALS)
    import botocore.session
    import s3fs  # noqa: F401 - so that the children need not import it

    # Each child would read the description of S3 again, which takes longer than its work.
    botocore.session.create_loader = functools.cache(botocore.session.create_loader)
    with serving() as address:
        drill = Drill(address, root, "drill-bucket", tally)
        assert not run_child(drill.push, root / "child.log", _LONGEST_S)[0]
        for seed in count(first_seed):
            if tally.killed >= kills:
                break
            drill.run(seed, FAULT_RATIO if seed // 4 % 2 else 0.0)
    return tally
