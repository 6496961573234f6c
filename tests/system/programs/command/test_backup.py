"""The machine of a command is lost with its disk: the same run on an empty one fetches its checkpoint, and goes on."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from prime_train.events import LaunchAsked, read
from tests.system.programs.command.commands import Supervised, list_marked, read_json, write_config
from tests.unit.cli.commands import prime_train, wait_until

STEPS, EVERY = 60, 5
_LOOP = f"""
for step in range(first + 1, {STEPS} + 1):
    time.sleep(0.1)
    report(step)
    total += step
    if step % {EVERY} == 0:
        save(step)
Path("final").write_text(f"{{total}} from {{first}}")
"""
# It finds its newest file itself.
TORCH = (
    """
import re, time, zipfile
from pathlib import Path
out = Path("out")
out.mkdir(exist_ok=True)
found = [int(name[1]) for path in out.iterdir() if (name := re.fullmatch(r"step_(\\d+)[.]pt", path.name))]
first, total = max(found, default=0), 0
if first:
    with zipfile.ZipFile(out / f"step_{first}.pt") as file:
        total = int(file.read("data"))
def report(step):
    print(f"step {step} loss {1 / step:.4f}", flush=True)
def save(step):
    with zipfile.ZipFile(out / "writing", "w") as file:
        file.writestr("data", str(total))
    (out / "writing").rename(out / f"step_{step}.pt")
"""
    + _LOOP
)
# It saves as Hugging Face's Trainer does, and is given the path.
HUGGING_FACE = (
    """
import json, struct, sys, time
from pathlib import Path
first, total = 0, 0
if len(sys.argv) > 1:
    first = json.loads(Path(sys.argv[1], "trainer_state.json").read_text())["global_step"]
    total = int(Path(sys.argv[1], "total").read_text())
def report(step):
    print(f"step {step} loss {1 / step:.4f}", flush=True)
def save(step):
    folder = Path("out") / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    header = json.dumps({"a": {"dtype": "U8", "shape": [1000], "data_offsets": [0, 1000]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(1000))
    (folder / "total").write_text(str(total))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
"""
    + _LOOP
)
LIVE = (
    """
import time
from pathlib import Path
from prime_train import live
first, total = 0, 0
if live.resume_path():
    first, total = map(int, Path(live.resume_path(), "state").read_text().split())
live.total({STEPS})
def report(step):
    live.step(step, loss=1 / step)
def save(step):
    folder = Path("out", f"step_{step}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state").write_text(f"{step} {total}")
    live.checkpoint(folder, step)
""".replace("{STEPS}", str(STEPS))
    + _LOOP
    + "live.finish()\n"
)
TRAINERS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "torch": (
        TORCH,
        {
            "run": {"max_steps": STEPS},
            "command_checkpoints": {"dir": "out", "layout": "torch"},
            "command_resume": {"how": "itself", "aside": "rename"},
        },
    ),
    "hf": (
        HUGGING_FACE,
        {
            "run": {"max_steps": STEPS},
            "command_checkpoints": {"dir": "out", "layout": "hf"},
            "command_resume": {"how": "argument", "template": "{path}", "aside": "rename"},
        },
    ),
    "live": (LIVE, {"command": {"trainer": "live"}, "command_progress": {}, "command_checkpoints": {"dir": "out"}}),
}


def make_machine(folder: Path, name: str, bucket: Path) -> Path:
    """A folder with the script and its config, as a clone of a repository is."""
    script, tables = TRAINERS[name]
    folder.mkdir()
    (folder / "train.py").write_text(script)
    backup = {"provider": "local", "bucket": str(bucket), "keep_last": 2}
    config = write_config("lost", (sys.executable, "-u", "train.py"), **tables, prime_train_backup=backup)
    (folder / "run.toml").write_text(config)
    return folder


@pytest.mark.parametrize("name", TRAINERS)
def test_an_empty_machine_fetches_the_newest_checkpoint_and_goes_on(tmp_path: Path, name: str) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    first = make_machine(tmp_path / "first", name, bucket)
    supervised = Supervised(first, "run.toml")
    try:
        wait_until(lambda: len(list(bucket.glob("lost/*/COMPLETE.json"))) > 1 or supervised.process.poll() is not None)
        assert supervised.process.poll() is None, supervised.process.communicate()
    finally:
        supervised.kill()
    wait_until(lambda: list_marked(supervised.run_dir) == [])
    shutil.rmtree(first)
    second = make_machine(tmp_path / "second", name, bucket)
    done = prime_train("run", "--no-validate", "run.toml", cwd=second)
    assert done.returncode == 0, done.stderr
    assert "restored from" in done.stderr
    events = [record.event for record in read(second / "runs" / "lost" / "events")]
    (resumed,) = (event.resume_step for event in events if isinstance(event, LaunchAsked))
    assert resumed >= 2 * EVERY
    assert (second / "final").read_text() == f"{sum(range(STEPS + 1))} from {resumed}"
    status = read_json(second, "status", "lost")
    assert (status["state"], status["step"]) == ("finished", STEPS)
    copies = read_json(second, "backup", "status", "lost")
    assert copies["newest_complete_step"] == STEPS


def test_a_folder_that_the_script_names_is_copied_and_asked_for_on_an_empty_machine(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    settings = ('prime_train.backup.provider="local"', f"prime_train.backup.bucket={str(bucket)!r}")
    words = ("run", "--no-validate", "--run-name", "lost", *(word for given in settings for word in ("--set", given)))
    command = ("--", sys.executable, "-u", "train.py")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(LIVE.replace("sleep(0.1)", "sleep(0.01)"))
    done = prime_train(*words, *command, cwd=tmp_path / "first")
    assert done.returncode == 0, done.stderr
    assert "nothing is copied before the folder" in done.stderr
    assert list(bucket.glob(f"lost/step_{STEPS}.*/COMPLETE.json"))
    refused = prime_train(*words, *command, cwd=tmp_path / "second")
    assert refused.returncode == 2, refused.stderr
    assert f"the newest of its backups is of step {STEPS}, and where it belongs is not known" in refused.stderr
    assert "command.checkpoints.dir" in refused.stderr
    assert not (tmp_path / "second" / "out").exists()
