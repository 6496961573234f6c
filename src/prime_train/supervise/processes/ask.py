"""Asks the supervisor of a run for something, and waits for the answer: a request file, and an event with the id."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.events import Follower, RequestAnswered
from prime_train.supervise.processes.requests import require_supervisor, write_request

LONGEST_S = 30.0  # a supervisor looks for requests about twice per second; a check of settings takes some seconds
_POLL_S = 0.05


def create_request_id() -> str:
    """A unique id, by which a request may be repeated without a second effect."""
    return os.urandom(8).hex()


def ask(
    run_dir: RunDir,
    attempt: int,
    kind: str,
    body: Mapping[str, Any],
    request_id: str,
    longest_s: float = LONGEST_S,
) -> RequestAnswered:
    """The supervisor's answer to a request. Raises UserError where no supervisor of this machine answers in time.

    `attempt`: the newest one. After the time the request is withdrawn, unless it was read: then the effect is not
    known, and the same id may be asked again.
    """
    holder = require_supervisor(run_dir)
    follower = Follower(run_dir.events)
    if (earlier := _find_answer(follower, request_id)) is not None:
        return earlier
    try:
        path = write_request(run_dir.requests(attempt), kind, holder.identity, request_id, body)
    except OSError as error:
        what, why = f"the request cannot be written: {error.strerror}", "the supervisor reads requests from this folder"
        fix = "give the command as the user who started the run, after its first attempt has begun"
        raise UserError(what, str(run_dir.requests(attempt)), why, fix, ExitCode.OUT_OF_REACH) from error
    until_s = time.monotonic() + longest_s
    while time.monotonic() < until_s:
        if (answer := _find_answer(follower, request_id)) is not None:
            return answer
        if not holder.identity.alive:
            break
        time.sleep(_POLL_S)
    is_read = not path.exists()
    path.unlink(missing_ok=True)
    what = "the supervisor has not answered" if holder.identity.alive else "the supervisor has ended"
    why = "it has read the request, so its effect is not known" if is_read else "it has not read the request: no effect"
    fix = f"look at it with `prime-train status {run_dir.path.name}`, then repeat the command"
    raise UserError(what, str(path), why, fix, ExitCode.OUT_OF_REACH)


def _find_answer(follower: Follower, request_id: str) -> RequestAnswered | None:
    """The answer among the events since the last call."""
    found = (record.event for record in follower.poll() if isinstance(record.event, RequestAnswered))
    return next((event for event in found if event.request_id == request_id), None)
