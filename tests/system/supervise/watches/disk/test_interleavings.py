"""Saves, deletions, readers, pins, damage and crashes in any order leave the newest checkpoint that was whole.

Real files in a real folder. The trainer's part is what trainer/saves/checkpoint.py does to the disk, without tensors;
the deletions are those of the program. A crash is a process that from some call on changes nothing more.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from prime_train.checkpoints import in_use, layout, removal
from prime_train.checkpoints.cleanup import Deletion, Keep, find_superseded, list_deletable
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.checkpoints.stock import Stock
from prime_train.supervise.watches.disk.removal_program import Order, RemovalWork, delete

CONTENT = b"0123456789"
NEVER = 10**6


class CrashError(BaseException):
    """The process was killed here: as SIGKILL it passes by every handler that would tidy up."""


@contextlib.contextmanager
def killed_after(calls: int) -> Iterator[None]:
    """Everything that changes the disk raises from the call with this number on."""
    left = calls

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            if left <= 0:
                raise CrashError
            left -= 1
            return real(*arguments, **named)

        return call

    def half(folder: Path) -> None:
        """As rmtree, file by file, so that it can be killed in between."""
        for path in sorted(folder.rglob("*"), key=lambda path: -len(path.parts)):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()

    with pytest.MonkeyPatch.context() as patch:
        for name in ("unlink", "rename", "rmdir", "replace"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        patch.setattr(shutil, "rmtree", half)
        yield


class Interleavings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="prime-train-interleavings-"))
        self.places = StepPlaces(self.root, (self.root / "checkpoints",))
        self.places.checkpoints[0].mkdir()
        self.keep_last, self.keep_every = 1, 7
        self.step = 0
        self.saving: int | None = None
        self.loading: int | None = None
        self.unreadable: set[int] = set()
        self.planned: tuple[Keep, tuple[Deletion, ...]] = (Keep(), ())
        self.promised: set[int] = set()  # complete, and pinned or of keep_every_steps
        self.newest = 0

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    # --- what is there ---

    def folder(self, step: int) -> Path:
        return self.places.checkpoints[0] / f"step_{step}"

    def usable(self) -> list[int]:
        """Complete checkpoints that would load, oldest first, those included whose deletion was not decided."""
        found = [
            c.step for c in layout.scan(self.places.checkpoints[0]) if c.complete and c.step not in self.unreadable
        ]
        return sorted(step for step in found if step != self.saving)

    def keep(self) -> Keep:
        return Keep(self.keep_last, self.keep_every, self.saving, self.loading, frozenset(self.unreadable))

    def some(self, data: st.DataObject) -> int:
        steps = [found.step for found in layout.scan(self.places.checkpoints[0])]
        return data.draw(st.sampled_from(steps))

    # --- the trainer ---

    @initialize(keep_last=st.integers(1, 3), keep_every=st.sampled_from([3, 7, NEVER]), saves=st.integers(0, 6))
    def configure(self, keep_last: int, keep_every: int, saves: int) -> None:
        self.keep_last, self.keep_every = keep_last, keep_every
        for _ in range(saves):
            self.begin_save(1)
            self.finish_save()

    @precondition(lambda self: self.saving is None)
    @rule(further=st.integers(1, 3))
    def begin_save(self, further: int) -> None:
        self.step += further
        self.saving, self.loading = self.step, None
        self.promised.discard(self.step)  # only one that could not be loaded is written anew
        removal.remove(self.folder(self.step))
        self.folder(self.step).mkdir()
        (self.folder(self.step) / "0.distcp").write_bytes(CONTENT)
        (self.folder(self.step) / ".metadata").write_bytes(b"")

    @precondition(lambda self: self.saving is not None)
    @rule()
    def finish_save(self) -> None:
        assert self.saving is not None
        layout.write_manifest(self.folder(self.saving), self.saving)
        self.unreadable.discard(self.saving)
        if self.saving % self.keep_every == 0:
            self.promised.add(self.saving)
        self.saving = None

    @precondition(lambda self: self.saving is None)
    @rule(count=st.integers(1, 4))
    def save(self, count: int) -> None:
        for _ in range(count):
            self.begin_save(1)
            self.finish_save()

    @precondition(lambda self: self.saving is not None)
    @rule()
    def fail_save(self) -> None:
        """No space: the trainer takes away what it has written."""
        assert self.saving is not None
        removal.remove(self.folder(self.saving))
        self.saving = None

    @precondition(lambda self: self.saving is None)
    @rule(calls=st.integers(0, 6) | st.just(NEVER))
    def trainer_lets_go(self, calls: int) -> None:
        known = [found for found in layout.scan(self.places.checkpoints[0]) if found.step <= self.step]
        known = [found for found in known if found.step not in self.unreadable]
        with killed_after(calls), contextlib.suppress(CrashError):
            for gone in find_superseded(known, self.keep_last, self.keep_every):
                removal.remove(gone.path)

    @rule()
    def crash_and_resume(self) -> None:
        """The supervisor puts back what was not decided, and takes the newest checkpoint that is whole."""
        self.saving = None
        self.planned = (Keep(), ())  # it has its deletions stand still before it chooses
        removal.put_back(self.places.checkpoints[0])
        self.step = self.loading = max(self.usable(), default=0)

    @precondition(lambda self: len(self.usable()) > 1 and self.saving is None)
    @rule()
    def find_the_newest_unreadable(self) -> None:
        newest = self.usable()[-1]
        self.unreadable.add(newest)
        self.promised.discard(newest)
        self.crash_and_resume()

    # --- others ---

    @precondition(lambda self: any(self.places.checkpoints[0].iterdir()))
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        step = self.some(data)
        (self.folder(step) / layout.PIN).touch()
        if step in self.usable():
            self.promised.add(step)

    @precondition(lambda self: any(self.places.checkpoints[0].iterdir()))
    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        """Whoever copies a checkpoint marks it; nothing of it goes meanwhile, whoever plans and deletes."""
        step = self.some(data)
        with in_use.using(self.folder(step)):
            before = {path.name for path in self.folder(step).iterdir()}
            self.plan()
            self.carry_out(NEVER)
            assert {path.name for path in self.folder(step).iterdir()} == before

    # --- our deletions ---

    @rule()
    def plan(self) -> None:
        """The plan may be old by the time it is carried out."""
        keep, now_s = self.keep(), time.time()
        self.planned = (keep, list_deletable(Stock(self.places).take(now_s), keep, now_s))

    @rule(calls=st.integers(0, 12) | st.just(NEVER))
    def carry_out(self, calls: int) -> None:
        keep, deletions = self.planned
        before = self.usable()
        work = RemovalWork(Order(self.places, keep, deletions), Stock(self.places))
        try:
            with killed_after(calls):
                for one in deletions:
                    delete(one, work)
        except CrashError:
            removal.put_back(self.places.checkpoints[0])
        after = self.usable()
        assert after[-1:] == before[-1:]  # ours never takes the newest, whoever else did what in between
        if keep.saving_step is None and keep.loading_step in before:
            assert keep.loading_step in after

    @rule(calls=st.integers(0, 12) | st.just(NEVER))
    def clean(self, calls: int) -> None:
        self.plan()
        self.carry_out(calls)

    @rule(
        data=st.data(), calls=st.integers(0, 12) | st.just(NEVER), between=st.sampled_from(["pin", "trainer", "damage"])
    )
    def clean_late(self, data: st.DataObject, calls: int, between: str) -> None:
        """Something happens between the plan and the deletion."""
        self.plan()
        keep, deletions = self.planned
        planned = [one.item.step for one in deletions if one.item.kind == "checkpoint"]
        if between == "pin" and planned:
            step = data.draw(st.sampled_from(planned))
            (self.folder(step) / layout.PIN).touch()
            if step in self.usable():
                self.promised.add(step)
        if between == "trainer" and self.saving is None:
            self.trainer_lets_go(calls)
        if between == "damage" and self.saving is None and len(self.usable()) > 1:
            newest = self.usable()[-1]
            layout.mark_damaged(self.folder(newest), "a bit flipped")
            self.promised.discard(newest)
        self.planned = (keep, deletions)
        self.carry_out(calls)

    # --- what holds always ---

    @invariant()
    def the_newest_is_there(self) -> None:
        usable = self.usable()
        if self.newest:
            assert usable, "there was a complete checkpoint, and none is left"
        self.newest = usable[-1] if usable else 0

    @invariant()
    def what_was_promised_is_there(self) -> None:
        assert self.promised <= set(self.usable()) | {self.saving}


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=50, stateful_step_count=40)
