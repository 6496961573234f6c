"""A real server that cannot start: the cause is named, and no second start is made where it would end the same way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from prime_train.core.errors import ExitCode
from prime_train.events import AttemptEnded, ChildStarted, ServiceReady
from tests.system.vllm.serving import START_LIMIT_S, config, started, unused_port
from tests.system.vllm.setups import SETUPS, Setup

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800), pytest.mark.spread]

WITHOUT_WATCHES = '[prime_train.watch]\ngpu = "off"\ndisk = "off"\nhost = "off"\npreemption = "off"\n'


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_the_cause_is_named_and_the_run_ends(
    setup: Setup, python: str, forking_python: str, model: Path, tmp_path: Path
) -> None:
    own_model = tmp_path / "model"
    shutil.copytree(model, own_model)
    port = unused_port()
    server = setup.change(own_model)
    if setup.spawned:
        text = config(python, own_model, port, server)
    else:
        text = config(forking_python, own_model, port, server, more=WITHOUT_WATCHES)
    with started(tmp_path, text, port, setup.variables) as served:
        code = served.supervisor.wait(START_LIMIT_S)
        attempts = served.events(AttemptEnded)
        causes = [(ended.cause_class, ended.cause_id) for ended in attempts]
        assert causes == [(setup.cause_class, setup.cause_id)], served.events_text()
        assert code == ExitCode.RUN_FAILED
        assert len(served.events(ChildStarted)) == 1
        assert not served.events(ServiceReady)
        assert not served.processes()
    assert all((ended.what, ended.why, ended.fix, ended.where) for ended in attempts)
