"""Reads the end of an attempt's log for the page: as `logs` shows it, without secrets, and bounded. Writes nothing."""

from __future__ import annotations

from typing import Any

from prime_train.control.remote_commands import show_evidence
from prime_train.control.timeline import shorten
from prime_train.control.watcher import Watcher
from prime_train.core.redaction import own_secrets
from prime_train.core.rundir import RunDir
from prime_train.supervise.agent.evidence import read_evidence
from prime_train.views.run.logs import attempt_or_latest, attempts
from prime_train.views.run.run_log import AttemptLog

LINES = 400  # that the page shows
EVIDENCE_LINES = 50  # beside a failure
_MOST_CHARACTERS = 1 << 20  # that are read for them: a log may have very long lines


def read_log(run_dir: RunDir, attempt: int | None, lines: int) -> dict[str, Any]:
    """The last lines of all sources of an attempt, the latest for None. Raises UserError without one."""
    shown = attempt_or_latest(run_dir, attempt)
    log = AttemptLog(run_dir, shown, own_secrets())
    log.skip_to_last(lines)
    text, size = [], 0
    for piece in log.more(is_all=True):
        text.append(piece[: _MOST_CHARACTERS - size])
        size += len(text[-1])
        if size >= _MOST_CHARACTERS:
            text.append("\n... the rest is not shown: prime-train logs shows all of it")
            break
    beside = read_evidence(run_dir, shown, own_secrets()) if lines <= EVIDENCE_LINES else []
    return {
        "evidence": show_evidence([one for one in beside if not one["name"].endswith(".log")]),
        "problem": None,
        "attempt": shown,
        "attempts": attempts(run_dir)[-100:],
        "lines": [shorten(line) for line in "".join(text).splitlines()[-2 * lines :]],
    }


def read_remote_log(watcher: Watcher, name: str, attempt: int | None, lines: int) -> dict[str, Any]:
    """The same for a run on another machine, as its agent returns it. Raises UserError."""
    assert watcher.remote is not None, "only runs on a bus have such a name"
    return watcher.remote.commands.read_log(watcher.name_on_bus(name) or name, attempt, lines)
