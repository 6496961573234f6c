"""Reads what prime-rl says of a run: lines of its logs, rows of its metrics.jsonl. Pure; what it does not know is None.

Source of the wording: prime-rl 2026-01, 2026-05 and 2026-08: entrypoints/rl.py, trainer/rl/train.py,
trainer/sft/train.py, orchestrator/orchestrator.py, utils/pathing.py. Parts of a step's line are optional, so each is
found by its label.
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
_LEFTOVERS = "already contains artifacts from a previous run"
_ENDS = (
    ("RL trainer finished!", "trainer"),
    ("SFT trainer finished!", "trainer"),
    ("Orchestrator finished.", "orchestrator"),
    ("RL training finished!", "launcher"),
    ("SFT training finished!", "launcher"),
    ("Training finished!", "launcher"),
)
_TOLD_TO_END = ("Received SIGTERM", "Received interrupt signal")
_MILESTONES = (
    "Starting ",
    "Startup complete",
    "Initializing model",
    "Resuming training from checkpoint",
    "Waiting for inference pool",
    "Inference pool ready",
    "Loading weights took",
)


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step was taken. What a line does not tell is None; a loss that is no number is nan."""

    step: int
    loss: float | None
    tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class Batch:
    """Rollouts that are ready of those that a training batch takes."""

    ready: int
    wanted: int


@dataclass(frozen=True, slots=True)
class Saving:
    """A save has begun. `step` None: the one at the end."""

    step: int | None


@dataclass(frozen=True, slots=True)
class Ended:
    """ "trainer", "orchestrator" or "launcher" says that it is done."""

    who: str


@dataclass(frozen=True, slots=True)
class PartFailed:
    """The launcher saw a part ("trainer", "env server wordle") end with another exit code than 0, and ends the rest.

    A negative code is the number of the signal that it was killed by.
    """

    part: str
    code: int


@dataclass(frozen=True, slots=True)
class ToldToEnd:
    """The launcher got SIGTERM or Ctrl-C."""


@dataclass(frozen=True, slots=True)
class FromScratch:
    """There was nothing to resume from, in `folder`, and it began at step 0."""

    folder: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The folder of the run has files of an earlier start in it."""

    text: str


@dataclass(frozen=True, slots=True)
class Traceback:
    """A Python traceback begins."""


@dataclass(frozen=True, slots=True)
class Milestone:
    """How far a start has come."""

    text: str


# Bytes that some line has which says something: a log of a hundred thousand lines a second is searched, not parsed.
WORDS = re.compile(
    rb"Step \d+ \||Train batch|Saving checkpoint|final checkpoint|failed with exit code|from scratch|already contains"
    rb"|finished[!.]|Received|Traceback|Starting|Startup complete|Initializing|Resuming|Waiting for|Inference pool"
    rb"|Loading weights"
)

Said = Stepped | Batch | Saving | Ended | PartFailed | ToldToEnd | FromScratch | Refused | Traceback | Milestone


def said(line: str) -> Said | None:
    """What a line of a log says, in whichever of its two formats; None for all else."""
    text = _message(line)
    if (step := _STEP.search(text)) is not None:
        if "Loss" not in text:  # the orchestrator's line of the same step
            return None
        loss, rate = _LOSS.search(text), _THROUGHPUT.search(text)
        return Stepped(int(step[1]), _number(loss[1]) if loss else None, _number(rate[1]) if rate else None)
    if (batch := _BATCH.search(text)) is not None:
        return Batch(int(batch[1]), int(batch[2]))
    if (failed := _FAILED.search(text)) is not None:
        return PartFailed(_part(failed[1]), int(failed[2]))
    if (scratch := _SCRATCH.search(text)) is not None:
        return FromScratch(scratch[1])
    if (saving := _SAVING.search(text)) is not None:
        return Saving(int(saving[1]) if saving[1] else None)
    if (who := next((who for words, who in _ENDS if words in text), None)) is not None:
        return Ended(who)
    if any(words in text for words in _TOLD_TO_END):
        return ToldToEnd()
    if _LEFTOVERS in text:
        return Refused(text)
    if "Traceback (most recent call last)" in text:
        return Traceback()
    return Milestone(text[:120]) if any(words in text for words in _MILESTONES) else None


def _part(told: str) -> str:
    """A part by the name that its log goes by. Environment servers are "Env-train-wordle" to the launcher."""
    name = told.strip().lower()
    server = re.match(r"(?:envs?[-/ ](?:train|eval)[-/ ])(.+)", name)
    return f"env server {server[1]}" if server else name


def _message(line: str) -> str:
    """The text without colours, time and level; of a line of JSON its message."""
    line = line.strip()
    if line.startswith("{"):
        try:
            document = json.loads(line)
        except ValueError:
            return line
        message = document.get("message") if isinstance(document, dict) else None
        return message if isinstance(message, str) else line
    return _STAMP.sub("", _ANSI.sub("", line))


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return math.nan


# --- metrics.jsonl ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One line of metrics.jsonl: several make a step, and orchestrator and trainer write to one file.

    `is_last` marks the trainer's row of times, which closes its step. A loss that is no number is left out by
    prime-rl, so that a step is closed without one.
    """

    step: int
    loss: float | None = None
    tokens_per_s: float | None = None
    tokens_seen: int | None = None
    save_s: float | None = None
    is_last: bool = False


def row(line: str) -> Row | None:
    """The row of one line; None for a line that is torn, or that is none."""
    try:
        raw = json.loads(line)
        step = int(raw["step"])
    except (ValueError, KeyError, TypeError):
        return None
    seen = _of(raw, "progress/total_tokens")
    return Row(
        step,
        loss=_of(raw, "loss/mean"),
        tokens_per_s=_of(raw, "perf/throughput"),
        tokens_seen=None if seen is None else int(seen),
        save_s=_of(raw, "time/save_ckpt"),
        is_last="time/forward_backward" in raw,
    )


def _of(raw: dict[str, Any], key: str) -> float | None:
    value = raw.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
