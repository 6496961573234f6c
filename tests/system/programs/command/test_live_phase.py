"""A script that names its phases knows how long each may take."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.system.programs.command.commands import Supervised, list_marked, read_json

SCRIPT = """\
import time
from pathlib import Path
from prime_train import live

live.total(4)
first = Path("first")
for step in range(1, 5):
    if step == 3 and not first.exists():
        first.touch()
        live.phase("generate", limit_s=2)
        time.sleep(600)
    live.step(step)
live.finish()
"""


def test_a_phase_that_lasts_longer_than_its_limit_is_a_hang(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(SCRIPT)
    supervised = Supervised(
        tmp_path, "--run-name", "t", "--set", "prime_train.restart.backoff_s=0.1", "--", sys.executable, "t.py"
    )
    try:
        code, err = supervised.await_end()
    finally:
        supervised.kill()
    assert code == 0, err
    assert "hang" in err
    status = read_json(tmp_path, "status", "t")
    assert (status["state"], status["step"], status["restarts"]) == ("finished", 4, 1)
    assert list_marked(supervised.run_dir) == []
