"""What watches see: a GPU that the driver gives up, a disk that fills, a host that runs short."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

from prime_train.events import AlarmRaised, SpaceFreed, read
from prime_train.supervise.core.state import State
from tests.drills.drill import Act, Row
from tests.drills.rows_files import mount, no_mount, unmount
from tests.drills.rows_silence import LIMIT_S, SLOWLY, until_saved
from tests.drills.rows_supervisor import no_compiler
from tests.drills.scene import DEADLINE_S, LOOK_S, Scene, trainer

_HERE = Path(__file__).parent
_NVML = _HERE.parent / "fakes" / "nvml.c"
_EVERY_S = 1.0
_DRIVER = {"LD_LIBRARY_PATH": "{folder}/driver", "FAKE_NVML": "{folder}/driver.txt"}

# --- GPUs -------------------------------------------------------------------------------------------


def _install(scene: Scene) -> None:
    """The stand-in of the driver: two GPUs, in good health."""
    (scene.folder / "driver").mkdir()
    library = scene.folder / "driver" / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, _NVML], check=True)
    (scene.folder / "kmsg").write_text("", encoding="utf-8")
    _state(scene)


def _state(scene: Scene, **values: int) -> None:
    beside = scene.folder / "driver.tmp"
    beside.write_text("".join(f"{name} {value}\n" for name, value in values.items()), encoding="utf-8")
    beside.replace(scene.folder / "driver.txt")


def _alarms(scene: Scene) -> set[tuple[str, int]]:
    """Their names, and the attempts in which they were raised."""
    events = (record.event for record in read(scene.run_dir.events))
    return {(event.name, event.attempt) for event in events if isinstance(event, AlarmRaised)}


def _until_alarm(scene: Scene, name: str, attempt: int = 1) -> None:
    scene.until(lambda _: (name, attempt) in _alarms(scene))


def _gives(name: str, **values: int) -> Act:
    """The driver says it until the alarm was raised; then all is well again, as after a reset."""

    def act(scene: Scene, _supervisor: int) -> None:
        until_saved(scene, 15)
        scene.marks.strike()
        _state(scene, **values)
        _until_alarm(scene, name)
        _state(scene)

    return act


def _kernel_gives(scene: Scene, _supervisor: int) -> None:
    until_saved(scene, 15)
    scene.marks.strike()
    with open(scene.folder / "kmsg", "a", encoding="utf-8") as log:
        log.write("4,901,811000000,-;NVRM: Xid (PCI:0000:3C:00): 79, pid=1, name=python, GPU has fallen off the bus.\n")
    _until_alarm(scene, "gpu_xid_79")


def _trains(attempt: int, state: State) -> bool:
    return state.attempt_number == attempt and state.step > state.attempts[-1].resume_step


def _lose_it_twice(scene: Scene, _supervisor: int) -> None:
    until_saved(scene, 15)
    scene.marks.strike()
    for attempt in (1, 2):
        scene.until(partial(_trains, attempt))
        _state(scene, lost=2)
        _until_alarm(scene, "gpu_lost", attempt)
        _state(scene)


def _let_go_of_the_gpu(scene: Scene, _supervisor: int) -> None:
    """The trainer lives and computes nothing, and its GPU is at 0 MiB and 0 %: a fault that leaves no error."""
    until_saved(scene, 15)
    pid = trainer(scene.state())
    _state(scene, user=pid, used=20 * 2**30, util=97)
    scene.until(lambda _: (scene.folder / "driver.txt.told").exists())
    scene.marks.strike()
    os.kill(pid, signal.SIGSTOP)
    _state(scene, used=0, util=0)
    _until_alarm(scene, "gpu_memory_gone")


def _gpu(name: str, found: str, says: str, act: Act, attempts: int = 2, max_steps: int = 1500) -> Row:
    return Row(
        "a GPU",
        name,
        found,
        (says,),
        attempts=attempts,
        act=act,
        prepare=_install,
        options=SLOWLY,
        max_steps=max_steps,
        watches={"gpu": _EVERY_S},
        variables=_DRIVER,
        needs=no_compiler,
    )


_GPUS = (
    _gpu("it is lost", "gpu_lost", "is lost", _gives("gpu_lost", lost=2)),
    _gpu("it must be reset", "gpu_reset_required", "must be reset", _gives("gpu_reset_required", reset=2)),
    _gpu("XID 79 comes as an event", "gpu_xid_79", "XID 79", _gives("gpu_xid_79", xid=79, xid_gpu=1, event=1)),
    _gpu("XID 79 is in the kernel's log", "gpu_xid_79", "XID 79", _kernel_gives),
    _gpu(
        "the trainer lives, and its GPU has 0 MiB in use at 0 %",
        "gpu_memory_gone",
        "no longer holds memory of trainer",
        _let_go_of_the_gpu,
    ),
    _gpu("it counts memory errors", "gpu_ecc", "gpu_ecc", _gives("gpu_ecc", ecc=1)),
    _gpu(
        "a call into the driver does not return",
        "gpu_driver_silent",
        "has not answered",
        _gives("gpu_driver_silent", wedge=1),
        1,
    ),
    _gpu("it is lost in two attempts, and left out", "gpu_lost", "GpuLeftOut(gpu='GPU-bbbb'", _lose_it_twice, 3, 4000),
)

# --- disks and hosts --------------------------------------------------------------------------------

_MIB = 2**20
_LEFT_BYTES = 60 * _MIB  # less than the watch wants to stay free beside a checkpoint


def _mount_large(scene: Scene) -> None:
    mount(scene, "runs", 300 * _MIB)


def _fill(scene: Scene, _supervisor: int, *, after_saves: int) -> None:
    """Another program takes the room that the next save needs.

    It takes the room in one moment: the disk shrinks. A file that grows for a second would be found as a growth.
    """
    until_saved(scene, after_saves)
    scene.marks.strike()
    found = os.statvfs(scene.folder / "runs")
    used_bytes = (found.f_blocks - found.f_bfree) * found.f_frsize
    size = f"remount,size={used_bytes + _LEFT_BYTES}"
    subprocess.run(["mount", "-o", size, str(scene.folder / "runs")], check=True)
    give_up_s = time.monotonic() + DEADLINE_S
    while not any(isinstance(record.event, SpaceFreed | AlarmRaised) for record in read(scene.run_dir.events)):
        assert time.monotonic() < give_up_s, scene.log_text()
        time.sleep(LOOK_S)


def _build_slow_disk(scene: Scene) -> None:
    library = scene.folder / "slow_disk.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, _HERE / "slow_disk.c", "-ldl"], check=True)


def _slow_down(scene: Scene, _supervisor: int) -> None:
    until_saved(scene, 3)
    scene.marks.strike()
    (scene.folder / "slow").touch()
    _until_alarm(scene, "disk_silent")
    (scene.folder / "slow").unlink()


def _room(name: str, found: str, says: str, exit_code: int, max_steps: int, deletes: bool) -> Row:
    return Row(
        "a disk",
        name,
        found,
        (says,),
        exit_code,
        1,
        # Where saves are deleted, there must be enough of them. Where none is, the watch predicts after five saves how
        # they fill the disk, if it has looked at each; on a busy machine it has, and the harm would come too late.
        act=partial(_fill, after_saves=7 if deletes else 2),
        prepare=_mount_large,
        after=unmount,
        options={"step_s": "0.05" if deletes else "0.2", "state_bytes": str(5 * _MIB)},
        policy={"step_limit_s": DEADLINE_S},  # the trainer waits for the harm
        max_steps=max_steps,
        watches={"disk": _EVERY_S},
        deletes=deletes,
        needs=no_mount,
    )


_DISKS = (
    _room(
        "another program takes the space of the next save, and older saves can be deleted",
        "",
        "SpaceFreed",
        0,
        150,
        True,
    ),
    _room(
        "another program takes the space of the next save, and nothing can be deleted",
        "disk_no_room",
        "nothing to delete",
        75,
        100,
        False,
    ),
    Row(
        "a disk",
        "it does not respond, like a network file system without its server",
        "disk_silent",
        (),
        0,
        1,
        act=_slow_down,
        prepare=_build_slow_disk,
        options=SLOWLY,
        max_steps=8000,
        watches={"disk": _EVERY_S},
        variables={"LD_PRELOAD": "{folder}/slow_disk.so", "SLOW_DISK": "{folder}/slow"},
        needs=no_compiler,
    ),
    Row(
        "a host",
        "almost all file descriptors are in use",
        "open_files",
        ("open",),
        0,
        1,
        "opens_many",
        options=SLOWLY,
        max_steps=500,
        watches={"host": _EVERY_S},
    ),
)

_HEALTHY = (
    Row(
        "nothing",
        "a trainer and a server under every watch, with a long evaluation and many saves",
        "",
        (),
        attempts=1,
        victim="evaluates",
        prepare=_install,
        options=SLOWLY,
        policy={"step_limit_s": LIMIT_S},
        max_steps=800,
        watches=dict.fromkeys(("gpu", "disk", "host", "engine"), _EVERY_S),
        server={},
        variables=_DRIVER,
        needs=no_compiler,
    ),
)

ROWS: tuple[Row, ...] = (*_GPUS, *_DISKS, *_HEALTHY)
