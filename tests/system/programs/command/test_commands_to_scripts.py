"""A script of one's own saves at once, pauses, resumes and goes back, by what `prime_train.live` tells it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from prime_train.core.errors import ExitCode
from prime_train.events import CheckpointSaved, LaunchAsked, SaveListened, read
from tests.system.programs.command.commands import Supervised, list_marked, read_json
from tests.unit.cli.commands import prime_train, wait_until

SCRIPT = """\
import time
from pathlib import Path
from prime_train import live

STEPS = 100_000
begun = live.resume_path()
first = int(Path(begun, "step").read_text()) if begun else 0

def save(step):
    folder = Path("out", f"step_{step}")
    folder.mkdir(parents=True, exist_ok=True)
    Path(folder, "step").write_text(str(step))
    live.checkpoint(folder, step)

live.total(STEPS)
for step in range(first + 1, STEPS + 1):
    time.sleep(0.02)
    live.step(step)
    if live.should_save():
        save(step)
    if live.should_stop():
        save(step)
        break
"""


def launched_from(supervised: Supervised) -> list[int]:
    events = (record.event for record in read(supervised.run_dir.events))
    return [event.resume_step for event in events if isinstance(event, LaunchAsked)]


def test_a_script_does_what_it_is_asked(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(SCRIPT)
    supervised = Supervised(tmp_path, "--run-name", "t", "--", sys.executable, "t.py")
    try:
        wait_until(lambda: any(isinstance(record.event, SaveListened) for record in read(supervised.run_dir.events)))
        refused = prime_train("pause", "t", cwd=tmp_path)
        assert refused.returncode == ExitCode.USAGE
        assert "where its trainer saves is not known" in refused.stderr

        saved = prime_train("ckpt", "now", "t", cwd=tmp_path)
        assert saved.returncode == 0, saved.stderr
        found = [record.event for record in read(supervised.run_dir.events)]
        (first,) = [event.step for event in found if isinstance(event, CheckpointSaved)]
        assert saved.stdout == f"the checkpoint of step {first:,} is complete: attempt 1\n"

        paused = prime_train("pause", "t", cwd=tmp_path)
        assert paused.returncode == 0, paused.stderr
        status = read_json(tmp_path, "status", "t")
        assert (status["state"], status["restarts"], status["children"]) == ("paused", 0, [])
        step = status["checkpoints"]["newest_complete"]
        assert step > first
        assert prime_train("resume", "t", cwd=tmp_path).stdout == f"attempt 2 is launched from step {step:,}\n"

        back = prime_train("resume", "t", "--from", str(first), cwd=tmp_path)
        assert back.returncode == 0, back.stderr
        assert launched_from(supervised) == [0, step, first]
        assert (tmp_path / "out" / f"step_{first}").is_dir()
        assert not (tmp_path / "out" / f"step_{step}").exists()  # it has another name
        supervised.process.send_signal(signal.SIGTERM)
        assert supervised.await_end()[0] == ExitCode.RESUMABLE
    finally:
        supervised.kill()
    assert list_marked(supervised.run_dir) == []


def test_a_checkpoint_of_a_trainer_that_looks_for_no_request_is_refused_with_the_way(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("import time\nfrom prime_train import live\nlive.step(1)\ntime.sleep(600)\n")
    supervised = Supervised(tmp_path, "--run-name", "t", "--", sys.executable, "t.py")
    try:
        wait_until(lambda: bool(launched_from(supervised)))
        wait_until(lambda: bool(read_json(tmp_path, "status", "t")["children"]))
        refused = prime_train("ckpt", "now", "t", cwd=tmp_path)
        assert refused.returncode == ExitCode.USAGE
        assert "the command does not save on request" in refused.stderr
        assert "prime_train.live.should_save()" in refused.stderr
    finally:
        supervised.process.send_signal(signal.SIGTERM)
        supervised.await_end()
        supervised.kill()
