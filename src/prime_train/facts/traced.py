"""Has one block and the head of a training traced by a child, which imports torch; this process never does."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from prime_train.errors import ExitCode, UserError
from prime_train.facts.child import ask
from prime_train.facts.facts import NotKnown

DEADLINE_S = 180.0  # importing torch takes seconds, on a busy machine half a minute; the tracing itself one


def trace(question: Mapping[str, int | bool]) -> dict[str, int]:
    """Live bytes as `prime_train.trainer.exact` counted them. Raises UserError with exit code 4 where it could not."""
    answer = ask([sys.executable, "-m", "prime_train.trainer.exact"], DEADLINE_S, given=json.dumps(dict(question)))
    if isinstance(answer, NotKnown):
        raise _untraced(answer.reason)
    if answer.code != 0:
        raise _untraced(answer.last_line or f"it ended with exit code {answer.code}")
    said: dict[str, int] = json.loads(answer.out)
    return said


def _untraced(reason: str) -> UserError:
    return UserError(
        what=f"the tracing came to nothing: {reason}",
        where="--exact",
        why="it needs torch, which this command itself never loads",
        fix="pip install 'prime-train[train]', or leave --exact out",
        exit_code=ExitCode.OUT_OF_REACH,
    )
