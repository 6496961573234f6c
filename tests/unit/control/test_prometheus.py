"""The text for Prometheus: every label is escaped, and what is not known has no sample."""

from __future__ import annotations

import re
from pathlib import Path

from prime_train.control.prometheus import write_metrics
from prime_train.control.watcher import Watcher
from tests.unit.views.written_runs import FIRST_ATTEMPT, WHOLE_LIFE, write_run

LINE = re.compile(r'(# (HELP|TYPE) \w+ .+|\w+\{(\w+="([^"\\\n]|\\["\\n])*",?)*\} -?[0-9.e+]+)')


def test_each_line_has_the_form_of_a_sample(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / 'a"} 1\nb\\', WHOLE_LIFE)
    write_run(tmp_path / "runs" / "small", FIRST_ATTEMPT)
    watcher = Watcher(tmp_path)
    watcher.look()
    text = write_metrics(watcher.stream.snapshot().document)
    assert [line for line in text.splitlines() if not LINE.fullmatch(line)] == []
    assert 'prime_train_step{run="small"} 60' in text
    assert 'prime_train_run_state{run="small",state="died"} 1' in text
    assert 'prime_train_reward{run="small"}' not in text
