"""The disk of a command that saves and saves: room is made in a known layout, and in an unknown one it is reported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import torch

from prime_train.core.rundir import RunDir, write_atomic
from prime_train.events import Progress, Record
from prime_train.programs.command.program import PROGRAM
from prime_train.spec import ENDLESS_STEPS, Run, RunSpec
from prime_train.spec.command import CheckpointSource, CommandSpec
from prime_train.spec.data import Data
from prime_train.spec.supervision import Cleanup, PrimeTrain
from prime_train.supervise.core.state import AttemptState, Live, State
from prime_train.supervise.watches.disk.watch import DiskWatch
from prime_train.supervise.watches.watch import Alarm
from tests.system.programs.command.commands import Supervised, list_marked, read_json, write_config
from tests.unit.cli.commands import wait_until

SAVER = Path(__file__).with_name("saver.py")
MB = 10**6
ONE_BYTES = 6 * MB  # of a checkpoint


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Makes a file system of so many MiB at a folder of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    points: list[Path] = []

    def make(size_mib: int) -> Path:
        point = tmp_path / f"disk-{len(points)}"
        point.mkdir()
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(point)], check=False)
        if made.returncode:
            pytest.skip("mounting is not allowed here")
        points.append(point)
        return point

    yield make
    for point in points:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


def fill(disk: Path, left_bytes: int = 0) -> Path:
    """What somebody else writes onto the disk, until so much is left."""
    other = disk / "of-somebody-else"
    with open(other, "wb", buffering=0) as file, suppress(OSError):
        while os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize > left_bytes and file.write(bytes(MB)):
            pass
    return other


# --- the watch, over a trainer that saves when it is told to ----------------------------------------


class Saver:
    """A process of `saver.py`. `disk`: where it saves; its lines go there, too."""

    def __init__(self, disk: Path, run_dir: RunDir, cwd: Path) -> None:
        self.disk = disk
        (cwd / "may").write_text("0", encoding="utf-8")
        self._may = cwd / "may"
        marked = os.environ | {"PRIME_TRAIN_RUN": str(run_dir.path)}
        words = [sys.executable, str(SAVER), "1000", str(ONE_BYTES)]
        with open(disk / "trainer.log", "wb") as log:
            self.process = subprocess.Popen(words, cwd=cwd, env=marked, stdout=log, stderr=log)

    def save(self, step: int) -> None:
        write_atomic(self._may, str(step), is_private=False)
        state = self.disk / "out" / f"checkpoint-{step}" / "trainer_state.json"
        wait_until(lambda: state.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, (self.disk / "trainer.log").read_text()

    @property
    def saved(self) -> list[int]:
        return sorted(int(path.name.partition("-")[2]) for path in (self.disk / "out").glob("checkpoint-*"))


@contextmanager
def saving(disk: Path, run_dir: RunDir, cwd: Path) -> Iterator[Saver]:
    saver = Saver(disk, run_dir, cwd)
    try:
        yield saver
    finally:
        saver.process.kill()
        saver.process.wait()


def state_at(step: int, newest_complete: int) -> State:
    live = Live(1, 1.0, phase="train", first_progress=Record(1.0, "trainer", 1, Progress(1, step, 1.0, 1.0, 1)))
    return State(
        run="a",
        max_steps=ENDLESS_STEPS,
        step=step,
        newest_complete=newest_complete,
        attempts=(AttemptState(1),),
        live=live,
    )


@contextmanager
def watching(cwd: Path, run_dir: RunDir, checkpoints: CheckpointSource, trainer: str = "") -> Iterator[DiskWatch]:
    """The watch as a supervisor has it, with smaller margins and a look each tenth of a second."""
    run = RunSpec(
        run=Run(name="a", kind="command", max_steps=ENDLESS_STEPS, dir=str(run_dir.path.parent)),
        data=Data(sources=()),
        command=CommandSpec(argv=("python", "train.py"), cwd=str(cwd), trainer=trainer, checkpoints=checkpoints),
        prime_train=PrimeTrain(cleanup=Cleanup(max_used_ratio=1.0)),
    )
    watch = DiskWatch(run, run_dir, partial(PROGRAM.places, run, run_dir), PROGRAM.keep(run), interval_s=0.1)
    watch._limits = type(watch._limits)(max_used_ratio=1.0, margin_bytes=MB, interval_s=0.1)
    watch.begin()
    try:
        yield watch
    finally:
        begun = watch.processes()
        watch.end()
        wait_until(lambda: not any(identity.alive for identity in begun))


@pytest.mark.parametrize(
    ("checkpoints", "trainer"),
    [(CheckpointSource(dir="out", layout="hf"), ""), (CheckpointSource(dir="out"), "hf")],
    ids=["named", "by its profile"],
)
def test_room_is_made_before_each_save(
    mount: Callable[[int], Path], tmp_path: Path, checkpoints: CheckpointSource, trainer: str
) -> None:
    """Ten saves of 6 MB on a disk of 33 MB: none fails, the best one and the newest two stay."""
    disk, run_dir = mount(32), RunDir(tmp_path / "runs" / "a")
    deleted: list[int] = []

    def look(watch: DiskWatch, step: int) -> None:
        watch.look(state_at(step, step), time.time())
        done = watch.freed()
        assert all(not one.failed for one in done), done
        deleted.extend(one.step for one in done)

    def is_reported(watch: DiskWatch, saver: Saver) -> bool:
        """A deletion is reported a moment after it is done."""
        look(watch, 50)
        return len(deleted) + len(saver.saved) == 10

    def has_room(watch: DiskWatch, step: int) -> bool:
        look(watch, step)
        free_bytes = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        return watch._memory.newest_seen == step and free_bytes > 1.1 * ONE_BYTES + MB

    with watching(disk, run_dir, checkpoints, trainer) as watch, saving(disk, run_dir, disk) as saver:
        for step in range(5, 55, 5):
            saver.save(step)
            wait_until(partial(has_room, watch, step))
        wait_until(partial(is_reported, watch, saver))
        assert watch._memory.saves == (40, 45, 50)
        assert saver.saved[0] == 5
        assert saver.saved[-2:] == [45, 50]
        assert deleted == sorted(deleted)


def test_a_layout_that_shows_with_the_first_checkpoint_is_followed(
    mount: Callable[[int], Path], tmp_path: Path
) -> None:
    """Lightning has two layouts, and nothing is there at the start that tells which."""
    disk, run_dir = mount(32), RunDir(tmp_path / "runs" / "a")
    with watching(disk, run_dir, CheckpointSource(dir="out"), "lightning") as watch:
        assert watch._places.layout.kind == "file"
        folder = disk / "out" / "step=10.ckpt"
        folder.mkdir(parents=True)
        torch.save({"a": torch.zeros(3)}, folder / "meta.pt")

        def is_seen() -> bool:
            watch.look(state_at(10, 10), time.time())
            return watch._places.layout.kind == "folder" and watch._memory.saves == (10,)

        wait_until(is_seen)


@pytest.mark.parametrize("is_cwd", [True, False], ids=["working directory", "open file"])
def test_in_an_unknown_layout_nothing_is_deleted_and_the_full_disk_is_reported(
    mount: Callable[[int], Path], tmp_path: Path, is_cwd: bool
) -> None:
    """The run directory is on another disk: the one where the trainer writes is looked at nevertheless."""
    disk, run_dir = mount(32), RunDir(tmp_path / "runs" / "a")
    cwd = disk
    if not is_cwd:  # its folder of checkpoints is a link to the disk, where it has its log
        cwd = tmp_path / "code"
        cwd.mkdir()
        (disk / "out").mkdir()
        (cwd / "out").symlink_to(disk / "out")
    with watching(cwd, run_dir, CheckpointSource()) as watch, saving(disk, run_dir, cwd) as saver:
        for step in range(5, 30, 5):
            saver.save(step)
        fill(disk)
        alarms: list[Alarm] = []

        def is_reported() -> bool:
            alarms[:] = [one for one in watch.look(state_at(25, 0), time.time()) if one.name == "disk_refuses"]
            return bool(alarms)

        wait_until(is_reported)
        assert not watch.freed()
        assert watch._removal is None
        assert saver.saved == [5, 10, 15, 20, 25]
    [alarm] = alarms
    assert (alarm.answer, alarm.subject) == ("alert", str(disk))
    assert "No space left on device" in alarm.what
    assert "command.checkpoints.layout" in alarm.fix


# --- the whole run -----------------------------------------------------------------------------------


def test_a_disk_fills_in_a_save_and_before_one_and_the_run_goes_on_with_room(
    mount: Callable[[int], Path], tmp_path: Path
) -> None:
    """Checkpoints of 40 MB on a disk of 360 MiB, with the margins of every run."""
    disk = mount(360)
    shutil.copy(SAVER, tmp_path)
    may, hold, out = tmp_path / "may", tmp_path / "hold", disk / "out"
    out.mkdir()
    (tmp_path / "out").symlink_to(out)
    config = write_config(
        "full",
        (sys.executable, "saver.py", "25", "40000000"),
        run={"max_steps": 25},
        command_checkpoints={"dir": str(out), "layout": "hf"},
        command_resume={"how": "argument", "template": "{path}", "aside": "rename"},
        prime_train_restart={"backoff_s": 0.1},
    )
    (tmp_path / "run.toml").write_text(config)

    def start() -> Supervised:
        return Supervised(tmp_path, "run.toml")

    # In the middle of a save: the trainer dies, and no other attempt can do better.
    may.write_text("14")
    run = start()
    try:
        run.await_text("step 14 ")
        hold.touch()
        write_atomic(may, "25", is_private=False)
        wait_until(lambda: (out / "checkpoint-15" / "model.safetensors").exists())
        other = fill(disk)
        hold.unlink()
        code, err = run.await_end()
    finally:
        run.kill()
    assert code in (5, 75), err  # the trainer's own error comes first, or the next look
    assert "No space left on device" in err
    # With room it goes on from the newest whole one. Before a later save the disk fills again.
    other.unlink()
    may.write_text("17")
    run = start()
    try:
        run.await_text("step 17 ", attempt=2)
        wait_until(lambda: (out / "checkpoint-15" / "trainer_state.json").exists())
        other = fill(disk, 60 * MB)  # less than a checkpoint and the files beside it
        code, err = run.await_end()
    finally:
        run.kill()
    assert code == 75, err
    assert "attempt 2 resumes from step 10" in err
    assert "the next checkpoint, due" in err
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-10", "checkpoint-15", "checkpoint-5"]
    other.unlink()
    may.write_text("25")
    run = start()
    try:
        code, err = run.await_end()
    finally:
        run.kill()
    assert code == 0, err
    assert "attempt 3 resumes from step 15" in err
    assert read_json(tmp_path, "status", "full")["step"] == 25
    assert list((out / "incomplete-0").iterdir())
    assert list_marked(run.run_dir) == []
