"""The options of `status --wandb`. tests/system/away/test_wandb_reading.py has the command with a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.cli.status import status
from prime_train.cli.status_wandb import Options, _expect, status_wandb
from prime_train.core.errors import UserError

PATH = "me/nano/k3x9"


def test_the_config_and_its_gpus_give_the_steps_and_the_time_of_one(here: Path) -> None:
    config = str(here / "run.toml")
    steps = _expect(Options(PATH, config))
    assert steps.max_steps is not None
    assert steps.step_s is None
    timed = _expect(Options(PATH, config, gpus="h100-80gb"))
    assert timed.max_steps == steps.max_steps
    assert timed.step_s is not None
    assert 0 < timed.step_s < 60


@pytest.mark.parametrize(
    "options",
    [Options("k3x9"), Options(PATH, gpus="h100-80gb"), Options(PATH, run_dir="/absent"), Options(PATH, "absent.toml")],
)
def test_a_wrong_option_is_refused_before_anything_is_asked(options: Options) -> None:
    with pytest.raises(UserError):
        status_wandb(options)


def test_options_of_a_remote_run_need_one() -> None:
    for refused in ({"config": "run.toml"}, {"gpus": "h100-80gb"}, {"run_dir": "."}):
        with pytest.raises(UserError) as raised:
            status(None, **refused)  # type: ignore[arg-type]
        assert "without --wandb" in raised.value.what
    with pytest.raises(UserError) as raised:
        status("small", wandb=PATH)
    assert raised.value.where == "RUN"
