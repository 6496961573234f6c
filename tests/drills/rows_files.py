"""Checkpoints, disks, logs and events that are damaged, full or gone."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.drills.drill import Row
from tests.drills.rows_silence import SLOWLY, until_saved
from tests.drills.scene import Scene, trainer

_DISK_BYTES = 2**20


def no_mount() -> str:
    """Why no disk of one's own can be mounted here."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(_mount(Path(folder), _DISK_BYTES), capture_output=True, text=True, check=False)
        if done.returncode == 0:
            subprocess.run(["umount", folder], check=True)
        return done.stderr.strip() if done.returncode else ""


def _mount(folder: Path, size_bytes: int) -> list[str]:
    return ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]


def mount(scene: Scene, name: str, size_bytes: int) -> None:
    """A disk of that size on the folder of that name."""
    (scene.folder / name).mkdir()
    subprocess.run(_mount(scene.folder / name, size_bytes), check=True)


def _mount_disk(scene: Scene) -> None:
    mount(scene, "disk", _DISK_BYTES)


def _mount_runs(scene: Scene) -> None:
    mount(scene, "runs", _DISK_BYTES)


def unmount(scene: Scene) -> None:
    for name in ("disk", "runs"):
        if os.path.ismount(scene.folder / name):
            subprocess.run(["umount", "--lazy", str(scene.folder / name)], check=True)


def _fill(scene: Scene, _supervisor: int) -> None:
    """Somebody else takes the rest of the disk."""
    until_saved(scene)
    scene.marks.strike()
    with open(scene.folder / "runs" / "somebody", "wb", buffering=0) as file:
        while _takes(file.fileno()):
            pass


def _takes(fd: int) -> bool:
    try:
        return os.write(fd, bytes(512)) == 512
    except OSError:
        return False


def _empty(scene: Scene) -> None:
    (scene.folder / "runs" / "somebody").unlink()


def _limit_supervisor(scene: Scene, supervisor: int) -> None:
    """Its event file takes no more, and then there is something to write."""
    until_saved(scene)
    size = (scene.run_dir.events / "supervisor.jsonl").stat().st_size
    resource.prlimit(supervisor, resource.RLIMIT_FSIZE, (size, size))
    scene.marks.strike()
    os.kill(trainer(scene.state()), signal.SIGKILL)


def _nothing(_scene: Scene) -> None:
    pass


def _kill_supervisor(scene: Scene, supervisor: int) -> None:
    until_saved(scene)
    scene.marks.strike()
    os.kill(supervisor, signal.SIGKILL)


def _change_the_seed(scene: Scene) -> None:
    path = scene.folder / "setting.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"seed": 7}), encoding="utf-8")


def _lose_the_events(scene: Scene) -> None:
    shutil.rmtree(scene.run_dir.events)


_REJECTED = "rejected=('step_20"

ROWS: tuple[Row, ...] = (
    Row(
        "a checkpoint",
        "the trainer dies in the middle of a save",
        "signal",
        ("rejected=('step_26",),
        victim="dies_in_save",
    ),
    Row("a checkpoint", "the newest is truncated", "signal", (_REJECTED, "has 10 of 1000 bytes"), victim="truncates"),
    Row("a checkpoint", "a file of the newest is gone", "signal", (_REJECTED,), victim="loses_a_file"),
    Row("a checkpoint", "the newest has no manifest", "signal", (_REJECTED,), victim="loses_the_manifest"),
    Row(
        "a checkpoint",
        "the newest has an invalid manifest",
        "signal",
        ("step_20: COMPLETE.json is unreadable",),
        victim="garbles_the_manifest",
    ),
    Row("a checkpoint", "the newest is deleted", "signal", ("resume_step=10",), victim="deletes_the_newest"),
    Row("a checkpoint", "none can be loaded", "signal", ("no checkpoint can be resumed from",), 5, 2, "spoils_all"),
    Row("a disk", "a save meets the limit of a file's size", "disk", ("File too large",), 5, 1, "file_limit"),
    Row(
        "a disk",
        "a save meets a full disk",
        "disk",
        ("No space left on device",),
        5,
        1,
        "full_disk",
        prepare=_mount_disk,
        after=unmount,
        options={"disk": "{folder}/disk"},
        needs=no_mount,
    ),
    Row(
        "a disk",
        "the run's own disk fills up; the command is run again when there is space",
        "disk",
        ("the run's own disk is full",),
        0,
        2,
        act=_fill,
        prepare=_mount_runs,
        again=_empty,
        after=unmount,
        options=SLOWLY,
        max_steps=400,
        needs=no_mount,
    ),
    Row(
        "a disk",
        "the supervisor cannot write its events; the command is run again",
        "signal",
        ("cannot be written",),
        0,
        2,
        act=_limit_supervisor,
        again=_nothing,
        options=SLOWLY,
        max_steps=200,
    ),
    Row(
        "a disk",
        "the run directory is deleted",
        "",
        ("the events that were written cannot be read back",),
        5,
        0,
        "deletes_the_run",
    ),
    Row(
        "a config",
        "it is changed between two supervisors",
        "",
        ("run.seed is 7",),
        2,
        1,
        act=_kill_supervisor,
        again=_change_the_seed,
        options=SLOWLY,
        max_steps=200,
    ),
    Row("a log", "a line of 10 MB before the cause", "disk", ("Disk quota exceeded",), 5, 1, "one_long_line"),
    # Work went on after the exception, so it need not be the end of the process, and does not close the run.
    Row("a log", "200,000 lines in two seconds after the cause", "disk", ("Disk quota exceeded",), victim="floods"),
    Row("a log", "bytes that are not text", "disk", ("Disk quota exceeded",), 5, 1, "writes_bytes"),
    Row("a log", "it is deleted", "signal", ("(SIGKILL)",), victim="unlinks_its_log"),
    Row("a log", "it cannot be read", "signal", ("(SIGKILL)",), victim="makes_its_log_a_folder"),
    Row("events", "the last line is incomplete", "signal", ("(SIGKILL)",), victim="tears_its_events"),
    Row("events", "lines that are not events", "", (), 0, 1, "garbles_its_events"),
    Row(
        "events",
        "all are lost while no supervisor runs",
        "",
        (),
        0,
        1,
        act=_kill_supervisor,
        again=_lose_the_events,
        options=SLOWLY,
        max_steps=200,
    ),
)
