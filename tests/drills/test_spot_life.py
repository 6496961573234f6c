"""A whole spot life on one machine: the script of a job is killed without notice and started again elsewhere."""

from __future__ import annotations

import json
import random
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from prime_train.away.sky import task
from prime_train.away.sky.job_plan import JobRequest, check_portable, plan_job
from prime_train.core.errors import ExitCode
from prime_train.core.rundir import RunDir
from prime_train.estimate.cost.run_cost import shipped_rates
from tests.system.away.stand_in_cloud import Cloud, Machine, Mount
from tests.unit.away.plans import PRICES, SALT, read_text

INTERVAL = 10
CONFIG = f"""
[run]
name = "life"
kind = "sft"
max_steps = {{steps}}

[[tasks]]
kind = "reverse-text"

[model]
layers = 3
hidden_size = 96
heads = 2

[data]
ctx_tokens = 64
loader_workers = 0

[[data.sources]]
kind = "demonstrations"
count = 256

[tokenizer]
vocab_size = 276

[batch]
micro_batch = 16

[checkpoint]
interval_steps = {INTERVAL}
keep_last = 2
async = false
final = "hf"

[eval]
interval_steps = 100
batches = 1

[prime_train.wandb]
project = "spot-life"
mode = "offline"
"""
_LIFE_S = 900.0  # a machine that trains beside much else; a test that waits so long has failed


def count_steps(kills: int) -> int:
    """More than the lives between the kills can take, with steps of 50 ms and rows that are written every 0.3 s."""
    return 50 + 18 * kills


def plan_task(tmp_path: Path, steps: int) -> dict[str, Any]:
    """The task as it is read back from its file."""
    run, config = read_text(CONFIG.format(steps=steps), "life.toml")
    check_portable(run, config, {})
    job = plan_job(run, config, JobRequest("aws", None, None, SALT), PRICES, shipped_rates())
    file = tmp_path / "job.yaml"
    file.write_text(task.to_yaml(task.document(job)), encoding="utf-8")
    written: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return written


class Life(NamedTuple):
    """What a machine did: the step it began after, and the last one that it took."""

    began: int
    last: int


def run_dir(bucket: Path) -> RunDir:
    return RunDir((bucket / "runs" / "life").resolve())


def last_step(bucket: Path) -> int:
    """The last whole line of metrics.jsonl; 0 without one."""
    try:
        lines = run_dir(bucket).metrics.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return 0
    return int(json.loads(lines[-1])["step"]) if lines else 0


def resumed_step(machine: Machine) -> int | None:
    """The step from which the machine continued; None if it did not get so far."""
    text = machine.output.read_text(encoding="utf-8", errors="replace")
    if "resumes from step " in text:
        return int(text.rpartition("resumes from step ")[2].split()[0].rstrip(";"))
    return 0 if "starts from the beginning" in text else None


def live_until_killed(machine: Machine, chance: random.Random) -> Life | None:
    """Kill the machine at a random moment: while it starts, or after some of its steps. None if it took no step."""
    if chance.random() < 0.2:
        time.sleep(chance.uniform(0.0, 6.0))  # the moment is the input of the test, not an event to wait for
    else:
        before = last_step(machine.bucket)
        wanted = chance.randint(1, 8)
        deadline_s = time.monotonic() + _LIFE_S
        while True:
            assert time.monotonic() < deadline_s, machine.output.read_text(encoding="utf-8", errors="replace")
            assert machine.process.poll() is None, machine.output.read_text(encoding="utf-8", errors="replace")
            began = resumed_step(machine)
            if began is not None and began + wanted <= last_step(machine.bucket) != before:
                break
            time.sleep(0.02)
        time.sleep(chance.uniform(0.0, 0.2))
    machine.take_away()
    began = resumed_step(machine)
    reached = last_step(machine.bucket)
    return None if began is None else Life(began, max(began, reached))


def final_weights(bucket: Path) -> bytes:
    return (run_dir(bucket).final / "model.safetensors").read_bytes()


def wandb_ids(bucket: Path) -> set[str]:
    """The ids of the offline runs that W&B wrote: the last part of their folders' names."""
    folders = (run_dir(bucket).path / "wandb").glob("offline-run-*")
    return {folder.name.rpartition("-")[2] for folder in folders}


def live(tmp_path: Path, mount: Mount, kills: int, steps: int) -> tuple[Cloud, list[Life]]:
    """A run to its end over `kills` machines that are taken away."""
    cloud = Cloud(tmp_path / mount.value, plan_task(tmp_path, steps), mount, {"OMP_NUM_THREADS": "1"})
    cloud.root.mkdir()
    chance = random.Random(12)
    lives = [life for _ in range(kills) if (life := live_until_killed(cloud.start(), chance)) is not None]
    final = cloud.start()
    code = final.wait(_LIFE_S)
    assert code == 0, final.output.read_text(encoding="utf-8", errors="replace")
    began = resumed_step(final)
    assert began is not None
    return cloud, [*lives, Life(began, steps)]


@pytest.mark.spread
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("mount", "kills", "most_lost"), [(Mount.DIRECT, 20, INTERVAL), (Mount.CACHED, 5, 2 * INTERVAL)]
)
def test_a_life_of_kills_ends_with_the_weights_of_an_undisturbed_run(
    tmp_path: Path, mount: Mount, kills: int, most_lost: int
) -> None:
    (tmp_path / "reference").mkdir()
    steps = count_steps(kills)
    undisturbed, _ = live(tmp_path / "reference", Mount.DIRECT, 0, steps)
    cloud, lives = live(tmp_path, mount, kills, steps)
    assert final_weights(cloud.bucket) == final_weights(undisturbed.bucket)
    lost = [before.last - after.began for before, after in pairwise(lives)]
    print(f"{mount.value}: {kills} kills, {len(lives)} lives with a step, lost steps {lost}")  # noqa: T201 - with -s
    assert max(lost) <= most_lost, lost
    assert wandb_ids(cloud.bucket) == {"life"}


@pytest.mark.spread
@pytest.mark.timeout(900)
def test_a_notice_by_signal_saves_and_ends_with_a_code_that_is_recovered(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path / "cloud", plan_task(tmp_path, steps=100), Mount.DIRECT, {"OMP_NUM_THREADS": "1"})
    cloud.root.mkdir()
    machine = cloud.start()
    deadline_s = time.monotonic() + _LIFE_S
    while last_step(cloud.bucket) < INTERVAL + 3:
        assert time.monotonic() < deadline_s, machine.output.read_text(encoding="utf-8", errors="replace")
        time.sleep(0.02)
    machine.process.terminate()  # the shell alone, as SkyPilot does
    assert machine.wait(_LIFE_S) == ExitCode.RESUMABLE
    reached = last_step(cloud.bucket)
    again = cloud.start()
    assert again.wait(_LIFE_S) == ExitCode.OK
    assert resumed_step(again) == reached
