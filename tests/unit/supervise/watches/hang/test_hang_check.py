"""A silent attempt that cannot be looked into."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue

from prime_train.core.rundir import RunDir
from prime_train.supervise.core.state import ChildProcess, Live
from prime_train.supervise.watches.hang.activity import Suspicion


def test_where_nothing_can_be_started_to_look_silence_has_no_excuse(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.watches.write_text("a file where the folder of its log is to be", encoding="utf-8")
    suspicion = Suspicion(run_dir, SimpleQueue(), ())
    found = suspicion.verdict(Live(1, 0.0, children=(ChildProcess("trainer", 2**22 + 1, 1, "log"),)))
    assert found is not None
    assert not found.busy
    assert found.what == "not known: no process can start to check it: File exists"
    assert suspicion.processes() == ()
