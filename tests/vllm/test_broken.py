"""A real server that cannot start: the cause is named, and no second start is made where it would end the same way."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from prime_train.core.errors import ExitCode
from prime_train.events import AttemptEnded, ChildStarted, ServiceReady
from tests.vllm.serving import START_LIMIT_S, config, started, unused_port
from tests.vllm.setups import SETUPS, Setup

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

AT_A_TIME = 2  # each takes a core for half a minute


class End(NamedTuple):
    """How a run came to its end."""

    code: int
    attempts: tuple[AttemptEnded, ...]
    starts: int
    served: bool
    left: int  # processes
    told: str


@pytest.fixture(scope="module")
def ends(python: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[End]]]:
    """Every set-up is run, two at a time, in the order of the table, and each test awaits its own."""
    root = tmp_path_factory.mktemp("broken")
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        runs = {setup.name: pool.submit(_run, setup, python, model, root / setup.name) for setup in SETUPS}
        yield runs
        for run in runs.values():
            run.cancel()


def _run(setup: Setup, python: str, model: Path, folder: Path) -> End:
    own_model = folder / "model"
    shutil.copytree(model, own_model)
    port = unused_port()
    text = config(python, own_model, port, setup.change(own_model))
    with started(folder, text, port, setup.variables) as served:
        code = served.supervisor.wait(START_LIMIT_S)
        attempts = tuple(served.events(AttemptEnded))
        was_up = bool(served.events(ServiceReady))
        return End(code, attempts, len(served.events(ChildStarted)), was_up, len(served.processes()), served.told())


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_the_cause_is_named_and_the_run_ends(setup: Setup, ends: dict[str, Future[End]]) -> None:
    end = ends[setup.name].result()
    assert [(ended.cause_class, ended.cause_id) for ended in end.attempts] == [(setup.cause_class, setup.cause_id)], (
        end.told
    )
    assert (end.code, end.starts, end.served, end.left) == (ExitCode.RUN_FAILED, 1, False, 0)
    (ended,) = end.attempts
    assert all((ended.what, ended.why, ended.fix, ended.where))
