"""A command that reads no changes still has a supervisor whose keys change while it trains."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from prime_train.core.errors import ExitCode
from prime_train.events import InstabilityFound
from prime_train.views.run.status import fold_events
from tests.system.programs.command.commands import Supervised
from tests.unit.cli.commands import prime_train, wait_until
from tests.unit.trainer import tiny

# It becomes unstable when the file "now" appears.
SCRIPT = """
import itertools, os, time
from prime_train import live

for step in itertools.count(1):
    live.step(step, loss=9.0 if os.path.exists("now") else 2.0 + 0.01 * (step % 7))
    live.phase("rest")
    assert live.settings() == {}
    time.sleep(0.005)
"""


def test_the_policy_is_turned_off_while_a_command_trains(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(SCRIPT)
    supervised = Supervised(tmp_path, "--run-name", "t", "--", sys.executable, "t.py")
    try:
        run_dir = supervised.run_dir
        wait_until(lambda: fold_events(run_dir).step > 250)
        listed = json.loads(prime_train("set", "t", "--json", cwd=tmp_path).stdout)["keys"]
        changed = prime_train("set", "t", "prime_train.instability.policy=off", "--wait", cwd=tmp_path)
        first = fold_events(run_dir).step
        (tmp_path / "now").touch()
        wait_until(lambda: fold_events(run_dir).step > first + 100)
    finally:
        supervised.process.send_signal(signal.SIGTERM)
        code, err = supervised.await_end()
        supervised.kill()
    assert {"prime_train.instability.policy", "prime_train.budget_usd"} <= {one["key"] for one in listed}
    assert (changed.returncode, code) == (0, ExitCode.RESUMABLE), changed.stderr + err
    assert "in force from step" in changed.stdout
    assert not [event for event in tiny.events(run_dir) if isinstance(event, InstabilityFound)]
