"""Two machines with networks of their own, and the cable between them is cut while their run is paused."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.core.errors import ExitCode
from prime_train.events import AlarmCleared, AlarmRaised
from prime_train.supervise.machines.protocol import NOT_THERE
from tests.drills.networks import can_make_networks, joined_networks
from tests.system.supervise.machines.commanded_run import run_at
from tests.unit.cli.commands import wait_until
from tests.unit.supervise.machines import hosts

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not can_make_networks(), reason="network namespaces need root and iproute2"),
]


def test_a_cut_while_a_run_is_paused_keeps_it_paused_until_the_machine_is_back(tmp_path: Path) -> None:
    with joined_networks(2) as networks, run_at(tmp_path, networks=networks) as run:
        first, second = run.start(0), run.start(1)
        run.await_step(1)
        run.do("pause", hosts.NAME)
        step = run.newest_complete()
        networks.cut(1)
        wait_until(lambda: any(one.watch == NOT_THERE[0] for one in run.events(AlarmRaised)))
        refused = run.give("resume", hosts.NAME)
        assert (refused.returncode, run.is_paused()) == (ExitCode.USAGE, True)
        assert "machine 1 (10.203.8.2) is not there while the run is paused" in refused.stderr.replace("\n", " ")
        networks.mend(1)
        wait_until(lambda: any(one.watch == NOT_THERE[0] for one in run.events(AlarmCleared)))
        run.do("resume", hosts.NAME)
        assert run.await_step(2) > step
        assert run.resume_steps() == [0, step]
        run.stop(first, second)
