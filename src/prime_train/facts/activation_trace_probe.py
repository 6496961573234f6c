"""Traces the activations of one block and the LM head in a child that imports torch; this process never does."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.installation import install_command
from prime_train.facts.facts import NotKnown
from prime_train.facts.probe_process import run_probe

DEADLINE_S = 180.0  # importing torch takes up to half a minute on a busy machine, tracing one second


def trace(setup: Mapping[str, int | bool]) -> dict[str, int]:
    """Live bytes from `prime_train.trainer.activation_trace`. Raises UserError with exit code 4 if the trace fails."""
    answer = run_probe(
        [sys.executable, "-m", "prime_train.trainer.activation_trace"], DEADLINE_S, stdin=json.dumps(dict(setup))
    )
    if isinstance(answer, NotKnown):
        raise _trace_error(answer.reason)
    if answer.code != 0:
        raise _trace_error(answer.last_line or f"it ended with exit code {answer.code}")
    live_bytes: dict[str, int] = json.loads(answer.out)
    return live_bytes


def _trace_error(reason: str) -> UserError:
    return UserError(
        what=f"the trace failed: {reason}",
        where="--exact",
        why="it needs torch, which this command itself does not load",
        fix=f"{install_command('train')}, or remove --exact",
        exit_code=ExitCode.OUT_OF_REACH,
    )
