"""The checkpoint to which a run goes back is protected, also that of a second command that overrules the first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prime_train.checkpoints import in_use
from prime_train.supervise.core.attempts import Attempts
from prime_train.supervise.core.state import State


def test_the_newest_step_to_go_back_to_is_protected_until_it_is_launched(tmp_path: Path) -> None:
    saved = [SimpleNamespace(step=step, path=tmp_path / str(step)) for step in (10, 20)]
    for one in saved:
        one.path.mkdir()
    journal: Any = SimpleNamespace(state=State())
    program: Any = SimpleNamespace(checkpoints=lambda *_: saved)
    none: Any = None
    attempts = Attempts(none, none, program, none, journal, none, none, ())
    found = []
    for step in (0, 20, 20, 10, 0, 20, 0):
        journal.state = State(go_back_to=step)
        attempts.protect()
        found.append([one.step for one in saved if in_use.marked_by(one.path)])
    assert found == [[], [20], [20], [10], [], [20], []]
