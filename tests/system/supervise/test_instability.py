"""A real supervisor answers a training that becomes unstable: it proposes a change, or makes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prime_train.core.plans import read_plans
from prime_train.core.rundir import RunDir
from prime_train.events import CommandAccepted, InstabilityFound, LaunchAsked, RequestAnswered, SettingsAccepted
from prime_train.views.run.status import fold_events
from tests.system.programs.command.commands import Supervised
from tests.unit.cli.commands import prime_train, wait_until
from tests.unit.trainer import tiny

# Its loss is high from step 80 on, or no number, while its rate is above 0.3. A checkpoint follows each ten steps.
SCRIPT = """
import json, math, os, sys, time
from prime_train import live

worst, steps = float(sys.argv[1]), int(sys.argv[2])
path = live.resume_path()
first = json.load(open(path + "/state.json")) if path else 0
live.total(steps)
for step in range(first, steps):
    rate = live.settings(step).get("lr", 0.5)
    unstable = rate > 0.3 and step >= 80
    live.step(step + 1, loss=worst if unstable else 2.0 + 0.01 * (step % 7))
    live.phase("rest")  # each step is reported at once then, not twice a second
    stops = live.should_stop()
    if stops or (step + 1) % 10 == 0:
        folder = f"out/step_{step + 1}"
        os.makedirs(folder, exist_ok=True)
        json.dump(step + 1, open(folder + "/state.json", "w"))
        live.checkpoint(folder, step + 1)
    if stops:
        sys.exit(0)
    time.sleep(0.02 if step < 80 or unstable else 0.005)
live.finish()
"""
CONFIG = """
[run]
name = "shaky"
kind = "command"
[command]
argv = ["python", "train.py", "{worst}", "{steps}"]
[[command.settings]]
name = "lr"
value = 0.5
min = 0.01
[prime_train.instability]
policy = "{policy}"
action = "{action}"
cool_down_steps = 5
"""


def start(folder: Path, policy: str, action: str, worst: str, steps: int = 200) -> Supervised:
    (folder / "train.py").write_text(SCRIPT)
    text = CONFIG.format(policy=policy, action=action, worst=worst, steps=steps)
    (folder / "shaky.toml").write_text(text)
    return Supervised(folder, "shaky.toml")


def events_of(run_dir: RunDir, kind: type) -> list[object]:
    return [event for event in tiny.events(run_dir) if isinstance(event, kind)]


def test_a_proposal_is_made_when_a_person_accepts_it(tmp_path: Path) -> None:
    supervised = start(tmp_path, "propose", "lower_rate", "9.0", 100_000)
    try:
        run_dir = supervised.run_dir
        wait_until(lambda: fold_events(run_dir).is_proposed)
        shown = prime_train("set", "shaky", "--history", cwd=tmp_path).stdout
        status = json.loads(prime_train("status", "shaky", "--json", cwd=tmp_path).stdout)
        accepted = prime_train("set", "shaky", "--accept", cwd=tmp_path)
        wait_until(lambda: bool(fold_events(run_dir).settings_applied))
        again = prime_train("set", "shaky", "--accept", cwd=tmp_path)
        stopped = prime_train("stop", "shaky", cwd=tmp_path)
        code, err = supervised.await_end()
    finally:
        supervised.kill()
    assert "proposal 1: lr = 0.25, because the loss of steps 81 to" in shown
    assert (status["proposal"]["number"], status["proposal"]["values"]) == (1, ["lr = 0.25"])
    assert accepted.returncode == 0, accepted.stderr
    assert "lr = 0.25" in accepted.stdout
    assert again.returncode == 1
    assert "no change is proposed" in again.stderr
    assert (stopped.returncode, code) == (0, 75), err
    [plan] = read_plans(run_dir.settings)
    assert plan.values == {"lr": 0.25}
    assert "instability 1: the loss of steps" in plan.why
    [done] = [one for one in events_of(run_dir, RequestAnswered) if one.outcome == "done"]  # type: ignore[attr-defined]
    assert done.what == "lr = 0.25"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("action", "worst"), [("lower_rate", "nan"), ("roll_back", "9.0")])
def test_the_policy_goes_back_lowers_the_rate_and_the_run_ends_well(tmp_path: Path, action: str, worst: str) -> None:
    supervised = start(tmp_path, "auto", action, worst)
    try:
        code, err = supervised.await_end()
    finally:
        supervised.kill()
    assert code == 0, err
    run_dir = supervised.run_dir
    [found] = events_of(run_dir, InstabilityFound)
    assert isinstance(found, InstabilityFound)
    assert (found.auto, found.go_back_to, found.values) == (True, 80, ("lr = 0.25",))
    assert found.step in (81, 82, 83)
    [back] = events_of(run_dir, CommandAccepted)
    [changed] = events_of(run_dir, SettingsAccepted)
    assert (back.command, back.step, back.by) == ("go_back", 80, "policy")  # type: ignore[attr-defined]
    assert changed.by == "policy"  # type: ignore[attr-defined]
    launches = events_of(run_dir, LaunchAsked)
    assert [launch.resume_step for launch in launches] == [0, 80]  # type: ignore[attr-defined]
    # The plan is there before the attempt, so the first step has its rate and the spike does not come again.
    assert fold_events(run_dir).settings_applied == ((1, 81),)


def test_an_instability_without_a_checkpoint_before_it_is_reported_alone(tmp_path: Path) -> None:
    text = SCRIPT.replace("stops or (step + 1) % 10 == 0", "stops")
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "shaky.toml").write_text(CONFIG.format(policy="auto", action="roll_back", worst="nan", steps=120))
    supervised = Supervised(tmp_path, "shaky.toml")
    try:
        code, err = supervised.await_end()
    finally:
        supervised.kill()
    assert code == 0, err
    [found] = events_of(supervised.run_dir, InstabilityFound)
    assert isinstance(found, InstabilityFound)
    assert (found.auto, found.values, found.go_back_to) == (False, (), 0)
    assert found.why == "there is no complete checkpoint before step 81"
