"""prime-rl under `prime-train run`: a stand-in of its launcher, with the processes, folders and faults it documents."""

from __future__ import annotations

from tests.drills.drill import Row
from tests.drills.scene import Scene
from tests.fakes.prime_rl_launcher import install


def _install(scene: Scene) -> None:
    install(scene.folder / "env")


def _row(name: str, found: str, says: str, fault: str, exit_code: int = 0, ours: str = "") -> Row:
    return Row(
        "prime-rl",
        name,
        found,
        (says,),
        exit_code,
        attempts=2 if exit_code == 0 else 1,
        stage="prime_rl",
        prepare=_install,
        options={"fault": fault, "at_step": "5"},
        files={"ours": ours},
    )


_QUICK = "[prime_train.heartbeat]\nstep_limit_s = 3.0\n"

ROWS: tuple[Row, ...] = (
    _row("its trainer is killed", "signal", "SIGKILL", "trainer_killed"),
    _row("its trainer dies in the middle of a save", "signal", "SIGKILL", "dies_in_save"),
    _row("its trainer raises", "unknown", "RuntimeError: boom", "trainer_raises"),
    _row(
        "its server ends with exit code 0, and the launcher ignores it",
        "service_gone",
        "inference",
        "inference_exits",
    ),
    _row("one of its processes hangs", "hang", "no sign of life", "hangs", ours=_QUICK),
    _row("an environment raises, and the orchestrator waits", "hang", "no sign of life", "env_raises", ours=_QUICK),
    _row("the launcher waits forever after the last step", "hang", "no sign of life", "tail_deadlocks", ours=_QUICK),
    _row("the GPU is out of memory", "oom", "out of memory", "out_of_memory", 5),
    _row("the disk is full", "disk", "No space left", "disk_full", 5),
)
