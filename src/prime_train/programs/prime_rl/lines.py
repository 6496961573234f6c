"""Parses lines of prime-rl's logs and rows of its metrics.jsonl. Pure; unknown lines give None.

Source of the texts: prime-rl 2026-01, 2026-05 and 2026-08: entrypoints/rl.py, trainer/rl/train.py,
trainer/sft/train.py, orchestrator/orchestrator.py, utils/pathing.py. Parts of a step's line are optional, so each has
a pattern with its label.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_STAMP = re.compile(r"\A\s*\d\d:\d\d:\d\d(\.\d+)?\s+[A-Z]+\s+")
_STEP = re.compile(r"\bStep (\d+) \|")
_LOSS = re.compile(r"\bLoss (-?(?:\d[\d.e+-]*|nan|inf))", re.IGNORECASE)
_THROUGHPUT = re.compile(r"\bThroughput ([\d.,]+) tokens/s")
_BATCH = re.compile(r"\bTrain batch (\d+)/(\d+)")
_SAVING = re.compile(r"\b(?:Saving checkpoint at step (\d+)|Writing final checkpoint)")
_FAILED = re.compile(r"(?:\A|\bError: )([\w./ -]+) failed with exit code (-?\d+)")
_SCRATCH = re.compile(r"No checkpoints found in (.+)\. Starting from scratch")
_ENDS = (
    ("RL trainer finished!", "trainer"),
    ("SFT trainer finished!", "trainer"),
    ("Orchestrator finished.", "orchestrator"),
    ("RL training finished!", "launcher"),
    ("SFT training finished!", "launcher"),
    ("Training finished!", "launcher"),
)
_GOT_SIGNAL = ("Received SIGTERM", "Received interrupt signal")
_MILESTONES = (
    *("Starting ", "Startup complete", "Initializing model", "Resuming training from checkpoint"),
    *("Waiting for inference pool", "Inference pool ready", "Loading weights took"),
)


@dataclass(frozen=True, slots=True)
class Stepped:
    """A completed step. A value that the line omits is None; a loss that is no number is nan."""

    step: int
    loss: float | None
    tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class BatchReady:
    """The ready rollouts of a training batch."""

    ready: int
    wanted: int


@dataclass(frozen=True, slots=True)
class SaveBegun:
    """A save has begun. `step` None: the one at the end."""

    step: int | None


@dataclass(frozen=True, slots=True)
class Ended:
    """ "trainer", "orchestrator" or "launcher" has finished."""

    who: str


@dataclass(frozen=True, slots=True)
class PartFailed:
    """A part ("trainer", "env server wordle") ended with another exit code than 0, so the launcher ends the rest.

    A negative code is the number of the signal that killed it.
    """

    part: str
    code: int


@dataclass(frozen=True, slots=True)
class GotSignal:
    """The launcher got SIGTERM or Ctrl-C."""


@dataclass(frozen=True, slots=True)
class FromScratch:
    """`folder` had no checkpoint to resume from, so the trainer began at step 0."""

    folder: str


@dataclass(frozen=True, slots=True)
class Traceback:
    """A Python traceback begins."""


@dataclass(frozen=True, slots=True)
class Milestone:
    """A stage of the start."""

    text: str


# Only lines with these bytes are parsed, because a log may grow by a hundred thousand lines a second.
WORDS = re.compile(
    rb"Step \d+ \||Train batch|Saving checkpoint|final checkpoint|failed with exit code|from scratch"
    rb"|finished[!.]|Received|Traceback|Starting|Startup complete|Initializing|Resuming|Waiting for|Inference pool"
    rb"|Loading weights"
)

Message = Stepped | BatchReady | SaveBegun | Ended | PartFailed | GotSignal | FromScratch | Traceback | Milestone


def parse_line(line: str) -> Message | None:
    """The message in a line of a log, in either of its two formats; None if it has none."""
    text = _strip(line)
    if (step := _STEP.search(text)) is not None:
        if "Loss" not in text:  # the orchestrator's line of the same step
            return None
        loss, rate = _LOSS.search(text), _THROUGHPUT.search(text)
        return Stepped(int(step[1]), _parse_number(loss[1]) if loss else None, _parse_number(rate[1]) if rate else None)
    if (batch := _BATCH.search(text)) is not None:
        return BatchReady(int(batch[1]), int(batch[2]))
    if (failed := _FAILED.search(text)) is not None:
        return PartFailed(_name_part(failed[1]), int(failed[2]))
    if (scratch := _SCRATCH.search(text)) is not None:
        return FromScratch(scratch[1])
    if (saving := _SAVING.search(text)) is not None:
        return SaveBegun(int(saving[1]) if saving[1] else None)
    if (who := next((who for words, who in _ENDS if words in text), None)) is not None:
        return Ended(who)
    if any(words in text for words in _GOT_SIGNAL):
        return GotSignal()
    if "Traceback (most recent call last)" in text:
        return Traceback()
    return Milestone(text[:120]) if any(words in text for words in _MILESTONES) else None


def _name_part(text: str) -> str:
    """The name of a part as in its log's path. The launcher calls environment servers "Env-train-wordle"."""
    name = text.strip().lower()
    server = re.match(r"(?:envs?[-/ ](?:train|eval)[-/ ])(.+)", name)
    return f"env server {server[1]}" if server else name


def _strip(line: str) -> str:
    """The text without colours, time and level; for a line of JSON, its message."""
    line = line.strip()
    if line.startswith("{"):
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            return line
        message = document.get("message") if isinstance(document, dict) else None
        return message if isinstance(message, str) else line
    return _STAMP.sub("", _ANSI.sub("", line))


def _parse_number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return math.nan


# --- metrics.jsonl ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MetricsRow:
    """One line of metrics.jsonl. A step has several rows, and orchestrator and trainer write to one file.

    `is_last` marks the trainer's row of times, which closes its step. prime-rl omits a loss that is no number, so a
    step may close without a loss.
    """

    step: int
    loss: float | None = None
    tokens_per_s: float | None = None
    tokens_seen: int | None = None
    save_s: float | None = None
    is_last: bool = False


_HIGHEST = 1e300  # no NaN is below it, and no number above it is one of a metric


def parse_row(line: str) -> MetricsRow | None:
    """The row of one line; None for a torn line or any other text."""
    try:
        raw = json.loads(line)
        step = int(raw["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    seen = _read_number(raw, "progress/total_tokens")
    return MetricsRow(
        step,
        loss=_read_number(raw, "loss/mean"),
        tokens_per_s=_read_number(raw, "perf/throughput"),
        tokens_seen=None if seen is None else int(seen),
        save_s=_read_number(raw, "time/save_ckpt"),
        is_last="time/forward_backward" in raw,
    )


def _read_number(raw: dict[str, Any], key: str) -> float | None:
    value = raw.get(key)
    return float(value) if isinstance(value, int | float) and abs(value) < _HIGHEST else None
