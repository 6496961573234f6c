"""W&B is dead while a run is mirrored there: it never answers, or refuses every connection."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

from tests.drills.drill import Do, Row
from tests.drills.scene import Scene
from tests.fakes.wandb_server import WandbServer

_GONE = "http://127.0.0.1:9"  # the port of "discard", which no machine serves
_servers: dict[Path, WandbServer] = {}


def _set_url(scene: Scene, url: str) -> None:
    """In the settings file that W&B reads from the home folder."""
    # A file of the working directory is not obeyed.
    settings = scene.folder / ".config" / "wandb" / "settings"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"[default]\nbase_url = {url}\n", encoding="utf-8")


def _serve_silence(scene: Scene) -> None:
    server = _servers[scene.folder] = WandbServer()
    server.mood = "silent"
    server.start()
    _set_url(scene, server.url)


def _refuse(scene: Scene) -> None:
    _set_url(scene, _GONE)


def _end_mirror(scene: Scene) -> None:
    """The mirror outlives the run, and waits for W&B; end it, and its helper, by their ids."""
    mirrors = [process for process in psutil.process_iter(["cmdline"]) if _mirrors(process, scene)]
    family = [child for mirror in mirrors for child in [*mirror.children(recursive=True), mirror]]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, 10)
    server = _servers.pop(scene.folder, None)
    if server is not None:
        server.stop()
        assert server.questions, "the mirror did not ask this server"
        assert mirrors, "the mirror did not wait for W&B when the run ended"


def _mirrors(process: psutil.Process, scene: Scene) -> bool:
    arguments = process.info["cmdline"] or []
    return "prime_train.views.wandb_mirror" in arguments and str(scene.run_dir.path) in arguments


def _row(name: str, prepare: Do) -> Row:
    return Row(
        "W&B",
        name,
        "",
        attempts=1,
        stage="trainer",
        fork_from_attempt=1,
        prepare=prepare,
        after=_end_mirror,
        options={"prime_train.wandb": 'project = "drill"'},
        variables={"WANDB_API_KEY": "0" * 40, "WANDB_MODE": "online", "HOME": "{folder}"},
    )


ROWS: tuple[Row, ...] = (
    _row("it never answers", _serve_silence),
    _row("it refuses every connection", _refuse),
)
