"""A cloud takes the machine away: with time for a save, without it, and from a trainer that hangs in its save."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

from prime_train.events import AlarmRaised, read
from prime_train.supervise.watches.preemption.watch import OVERRIDE
from tests.drills.drill import Act, Do, Row
from tests.drills.faults import until_trained
from tests.drills.rows_silence import SLOWLY, until_saved
from tests.drills.scene import Scene, trainer
from tests.fakes.metadata_server import MetadataServer

_EVERY_S = 0.2
_servers: dict[Path, MetadataServer] = {}


def _serve(cloud: str) -> Do:
    def prepare(scene: Scene) -> None:
        server = _servers[scene.folder] = MetadataServer(cloud)
        server.start()
        (scene.folder / "metadata").write_text(f"{cloud}={server.url}", encoding="utf-8")

    return prepare


def _serve_trainer(scene: Scene) -> None:
    """For `prime-train run`, which finds the server by a variable."""
    server = _servers[scene.folder] = MetadataServer("aws")
    server.start()
    assert isinstance(scene.variables, dict)
    scene.variables[OVERRIDE] = f"aws={server.url}"


def _announce_to_trainer(scene: Scene, _supervisor: int) -> None:
    """The trainer waits until the notice is found, because it has few steps left."""
    pid = trainer(until_trained(scene, 1))
    os.kill(pid, signal.SIGSTOP)
    scene.marks.strike()
    _servers[scene.folder].announce(120.0)
    scene.until(lambda state: state.leaves_s is not None)
    os.kill(pid, signal.SIGCONT)


def _close(scene: Scene) -> None:
    if scene.folder in _servers:
        _servers.pop(scene.folder).stop()


def _announce(left_s: float) -> Act:
    def act(scene: Scene, _supervisor: int) -> None:
        until_saved(scene, 2)
        scene.marks.strike()
        _servers[scene.folder].announce(left_s)

    return act


def _hint(scene: Scene, _supervisor: int) -> None:
    until_saved(scene, 2)
    scene.marks.strike()
    _servers[scene.folder].hint()
    scene.until(lambda _: any(isinstance(record.event, AlarmRaised) for record in read(scene.run_dir.events)))


def _withdraw(scene: Scene) -> None:
    """The command is given on another machine, which has no notice."""
    _servers[scene.folder].withdraw()


def _row(
    name: str,
    cloud: str,
    act: Act,
    says: str,
    *,
    exit_code: int = 75,
    victim: str = "nothing",
    again: Do | None = None,
    found: str = "preempted",
    options: Mapping[str, str] = SLOWLY,
) -> Row:
    return Row(
        "a cloud takes the machine",
        name,
        found,
        (says,),
        exit_code,
        attempts=1 if again is None else 2,
        victim=victim,
        act=act,
        prepare=_serve(cloud),
        again=again,
        after=_close,
        options=options,
        max_steps=800,
        watches={"preemption": _EVERY_S},
    )


_TRAINER = Row(
    "the bundled trainer",
    "AWS takes its machine away",
    "preempted",
    ("AWS takes this machine away", "run stopped"),
    stage="trainer",
    act=_announce_to_trainer,
    prepare=_serve_trainer,
    again=_withdraw,
    after=_close,
)

ROWS: tuple[Row, ...] = (
    _TRAINER,
    _row("AWS, with two minutes", "aws", _announce(120.0), "AWS takes this machine away"),
    _row("Google Cloud, with 30 s", "gcp", _announce(30.0), "Google Cloud takes this machine away"),
    _row("Azure, with 30 s", "azure", _announce(30.0), "Azure takes this machine away"),
    _row("AWS, and the same command continues", "aws", _announce(60.0), "AWS takes", exit_code=0, again=_withdraw),
    _row("AWS, with no time for a save", "aws", _announce(4.0), "no time is left to save"),
    _row("AWS, and the save never ends", "aws", _announce(9.0), "no time is left to save", victim="hangs_in_stop"),
    _row("AWS may take it soon", "aws", _hint, "takes such machines away soon", exit_code=0, found="preemption_near"),
)
