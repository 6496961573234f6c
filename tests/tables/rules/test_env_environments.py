"""The packages of the trainer are needed where something is trained, and by no run that only serves."""

from __future__ import annotations

import pytest

from prime_train.config import detect
from prime_train.rules.data.env_environments import train_extra_missing
from tests.unit.rules.examples import facts_of

TRAINS = '[run]\nname = "x"\nmax_steps = 1\n[data]\nsources = [{kind = "files", path = "a.txt"}]\n'
SERVES = '[run]\nname = "x"\nkind = "serve"\n[inference]\nmodel = "models/x"\npython = "/opt/venv/bin/python"\n'


@pytest.mark.parametrize(("text", "is_needed"), [(TRAINS, True), (SERVES, False)])
def test_a_wheel_without_torch_serves_by_another_interpreter(text: str, is_needed: bool) -> None:
    run = detect.read(text, "run.toml").run
    assert run is not None
    facts = facts_of({"packages": {"missing": ["torch"]}}, run)
    assert bool(list(train_extra_missing(run, facts))) == is_needed
