"""Runs `diagnose --json` over made logs and counts what is right. Knows the command's documented output only."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from prime_train.cli.diagnose import diagnose
from tests.unit.diagnose.made_logs.made_log import MadeLog

CLOSES = frozenset({"no", "after_fix"})  # the verdicts that end a run


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge reports about one log."""

    line: int  # from 1; 0 if it names none
    cause_class: str
    signature: str  # "" for an unknown failure
    retry: str
    exit_code: int

    @property
    def names_a_cause(self) -> bool:
        return self.line > 0

    @property
    def is_undecided(self) -> bool:
        """Whether it names no cause and yet does not call the log healthy."""
        return not self.line and self.exit_code != 0


@dataclass(frozen=True, slots=True)
class Counts:
    """How many of the logs are judged right. A class counts only together with the line."""

    failing: int
    line: int
    line_and_class: int
    named: int  # failing logs whose verdict names a signature
    named_wrong: int  # and has another line or another class than the truth
    missed: int  # failing logs that are called healthy
    undecided: int  # failing logs without a cause that are not called healthy, except those that just end
    closed_wrongly: int  # a retry of "no" or "after_fix" where another attempt helps
    healthy: int
    false_alarms: int  # healthy logs for which a cause is named
    healthy_undecided: int  # healthy logs without a cause that are not called healthy either

    def fractions(self) -> dict[str, float]:
        """Each goal's figure, from 0 to 1."""
        failing, healthy = max(1, self.failing), max(1, self.healthy)
        return {
            "line": self.line / failing,
            "line_and_class": self.line_and_class / failing,
            "wrong_with_a_signature": self.named_wrong / max(1, self.named),
            "missed": self.missed / failing,
            "closed_wrongly": self.closed_wrongly / failing,
            "undecided": self.undecided / failing,
            "false_alarms": self.false_alarms / healthy,
            "healthy_undecided": self.healthy_undecided / healthy,
        }


def judge(path: Path) -> Verdict:
    """The verdict of `prime-train diagnose --json PATH`, in this process."""
    output, code = io.StringIO(), 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
        try:
            diagnose([str(path)], as_json=True)
        except typer.Exit as end:
            code = end.exit_code
    cause = json.loads(output.getvalue()).get("cause") or {}
    name = cause.get("id", "")
    return Verdict(
        line=int(cause.get("line") or 0),
        cause_class=cause.get("class", ""),
        signature="" if name == "UNKNOWN" else name,
        retry=cause.get("retry", ""),
        exit_code=code,
    )


def is_line_right(log: MadeLog, verdict: Verdict) -> bool:
    """Whether the verdict names the line. A log that just ends must not be called healthy or have a signature."""
    if log.is_silent:
        return verdict.exit_code != 0 and not verdict.signature
    return verdict.line in log.right_lines()


def is_right(log: MadeLog, verdict: Verdict) -> bool:
    """Whether line and class are those of the truth; for a healthy log, whether it is called healthy."""
    if log.is_healthy:
        return verdict.exit_code == 0
    return is_line_right(log, verdict) and (log.is_silent or verdict.cause_class in log.classes)


def closes_wrongly(log: MadeLog, verdict: Verdict) -> bool:
    """Whether the verdict ends a run that another attempt, or no one's help, would carry on."""
    return verdict.retry in CLOSES and log.retry not in CLOSES


def count(judged: Iterable[tuple[MadeLog, Verdict]]) -> Counts:
    """The counts over logs and their verdicts."""
    pairs: Sequence[tuple[MadeLog, Verdict]] = list(judged)
    failing = [(log, verdict) for log, verdict in pairs if not log.is_healthy]
    healthy = [verdict for log, verdict in pairs if log.is_healthy]
    named = [(log, verdict) for log, verdict in failing if verdict.signature]
    return Counts(
        failing=len(failing),
        line=sum(is_line_right(log, verdict) for log, verdict in failing),
        line_and_class=sum(is_right(log, verdict) for log, verdict in failing),
        named=len(named),
        named_wrong=sum(not is_right(log, verdict) for log, verdict in named),
        missed=sum(verdict.exit_code == 0 for _, verdict in failing),
        undecided=sum(verdict.is_undecided and not log.is_silent for log, verdict in failing),
        closed_wrongly=sum(closes_wrongly(log, verdict) for log, verdict in failing),
        healthy=len(healthy),
        false_alarms=sum(verdict.names_a_cause for verdict in healthy),
        healthy_undecided=sum(verdict.is_undecided for verdict in healthy),
    )
