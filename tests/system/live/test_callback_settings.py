"""The real trainers take a rate that is changed while they train, and hand other settings to the script."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from prime_train import live
from prime_train.core.plans import ChangePlan, write_plan
from prime_train.views.run.status import fold_events
from tests.system.live.trainers import HUGGING_FACE, LIGHTNING, find_interpreter, live_environment
from tests.system.programs.command.commands import Supervised
from tests.unit.cli.commands import prime_train, wait_until

HOOK = """
import json
from prime_train.callbacks.settings import on_settings
taken = []
on_settings(lambda values: taken.append([trainer.state.global_step if hugging else trainer.global_step, values]))
"""
_OF_HUGGING_FACE = (
    HUGGING_FACE.replace("logging_steps=2", "logging_steps=1").replace(
        "trainer.train()", f"hugging = True{HOOK}\ntrainer.train()"
    )
    + "rates = [row['learning_rate'] for row in trainer.state.log_history if 'learning_rate' in row]\n"
    + "open('rates.json', 'w').write(json.dumps([rates, taken]))\n"
)
_OF_LIGHTNING = (
    LIGHTNING.replace(
        "        return self", "        rates.append(self.optimizers().param_groups[0]['lr'])\n        return self"
    ).replace("trainer.fit(", f"hugging, rates = False, []{HOOK}\ntrainer.fit(")
    + "open('rates.json', 'w').write(json.dumps([rates, taken]))\n"
)
CHANGED_AT = 5


def train(module: str, script: str, folder: Path, *, changes: bool) -> tuple[list[float], list[Any]]:
    """The rate of each step, and what the function of the script was given."""
    folder.mkdir()
    (folder / "train.py").write_text(script)
    environment = live_environment(folder / "live")
    if changes:
        write_plan(folder / "plans", ChangePlan(version=1, values={"lr": 0.002, "batch_size": 8}, before={}))
        (folder / "applied.json").write_text(json.dumps({"applied": [[1, CHANGED_AT]]}))
        environment |= {live.PLANS_ENV: str(folder / "plans"), live.APPLIED_ENV: str(folder / "applied.json")}
    python = find_interpreter(module)
    done = subprocess.run(
        [python, "train.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rates, taken = json.loads((folder / "rates.json").read_text())
    return rates, taken


@pytest.mark.trainers
@pytest.mark.parametrize(
    ("module", "script", "base"), [("accelerate", _OF_HUGGING_FACE, 5e-5), ("lightning", _OF_LIGHTNING, 0.01)]
)
def test_the_rate_changes_at_its_step_and_the_schedule_goes_on(
    module: str, script: str, base: float, tmp_path: Path
) -> None:
    before, nothing = train(module, script, tmp_path / "before", changes=False)
    after, taken = train(module, script, tmp_path / "after", changes=True)
    assert nothing == []
    assert taken == [[CHANGED_AT - 1, {"batch_size": 8}]]
    factors = [1.0] * (CHANGED_AT - 1) + [0.002 / base] * (len(before) - CHANGED_AT + 1)
    assert after == pytest.approx([rate * factor for rate, factor in zip(before, factors, strict=True)])


CONFIG = """
[run]
name = "other"
kind = "command"
[command]
argv = ["{python}", "train.py"]
[[command.settings]]
name = "lr"
value = 0.01
"""


@pytest.mark.trainers
def test_set_changes_the_rate_of_a_trainer_that_is_supervised(tmp_path: Path) -> None:
    script = _OF_LIGHTNING.replace("        return self", "        import time; time.sleep(0.2)\n        return self")
    (tmp_path / "train.py").write_text(script.replace("max_steps=12", "max_steps=100000"))
    (tmp_path / "other.toml").write_text(CONFIG.format(python=find_interpreter("lightning")))
    supervised = Supervised(tmp_path, "other.toml")
    try:
        run_dir = supervised.run_dir
        wait_until(lambda: fold_events(run_dir).step > 0)
        changed = prime_train("set", "other", "lr=0.002", cwd=tmp_path)
        wait_until(lambda: bool(fold_events(run_dir).settings_applied))
        stopped = prime_train("stop", "other", cwd=tmp_path)
        code, err = supervised.await_end()
    finally:
        supervised.kill()
    assert changed.returncode == 0, changed.stderr
    assert (stopped.returncode, code) == (0, 75), err
    rates, _ = json.loads((tmp_path / "rates.json").read_text())
    [(_, first)] = fold_events(run_dir).settings_applied
    assert rates[: first - 1] == [0.01] * (first - 1)
    assert rates[first - 1 :] == pytest.approx([0.002] * (len(rates) - first + 1))
