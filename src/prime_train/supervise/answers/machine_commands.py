"""Checks commands about the other machines of a run: which can be drained, and whether an attempt can have them all."""

from __future__ import annotations

from collections.abc import Sequence

from prime_train.core.machines import find_machine, name_machine
from prime_train.supervise.answers.command_scene import CommandRefusal, CommandScene
from prime_train.supervise.core.command_answers import describe_reach
from prime_train.supervise.machines.protocol import NOT_THERE

_ALL_TRAIN = "every machine of the run trains a part of each step, so it does not go on with the others alone"


def list_machines(scene: CommandScene) -> tuple[str, ...]:
    """The names of the machines of a run on several; none for a run on one."""
    count = scene.run.parallel.machines
    return tuple(map(name_machine, range(count))) if count > 1 else ()


def refuse_names(asked: Sequence[str], scene: CommandScene) -> None:
    """Raises CommandRefusal for a command about machine 0, or about machines and GPUs together."""
    machines = [one for one in asked if find_machine(one) >= 0]
    if name_machine(0) in machines:
        what, why = "machine-0 cannot be taken out", "it has the supervisor and the directory of the run"
        fix = f"name its GPUs by their numbers; prime-train pause {scene.name} frees all of them"
        raise CommandRefusal(what, why, fix)
    if machines and len(machines) < len(asked):
        what = f"{', '.join(machines)} and GPUs are named together"
        raise CommandRefusal(what, "the run goes on without a GPU, and pauses without a machine", "give two commands")


def describe_drain(machines: Sequence[str], scene: CommandScene) -> str:
    """What follows once machines are drained."""
    reach = f"{describe_reach(scene.state)} is asked to save and to end; " if scene.state.live is not None else ""
    return f"{reach}the run stays paused until {', '.join(machines)} is returned"


def refuse_without_machines(scene: CommandScene) -> None:
    """Raises CommandRefusal while a machine is drained, or is not there while the run is paused."""
    if drained := scene.state.drained_machines:
        names = " ".join(drained)
        fix = f"prime-train gpu return {scene.name} {names}; or stop it, and start it with fewer parallel.machines"
        raise CommandRefusal(f"the run stays paused, because {names} is drained", _ALL_TRAIN, fix)
    standing = (one.alarm for one in scene.state.alarms if (one.alarm.watch, one.alarm.name) == NOT_THERE)
    if (alarm := next(standing, None)) is not None:
        raise CommandRefusal(alarm.what, alarm.why, alarm.fix)
