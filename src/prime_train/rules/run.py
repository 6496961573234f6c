"""A run's name, its directory and its restarts. Pure: the facts are given."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prime_train.findings import Problem, Severity
from prime_train.rules.base import rule
from prime_train.spec import RunSpec

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


@rule("RUN001", Severity.ERROR)
def name_is_no_directory(run: RunSpec) -> Iterator[Problem]:
    """run.name must work as the name of a directory, everywhere.

    the name is part of the run directory, of keys in object stores and of shell commands

    1 to 64 letters, digits, dots, dashes and underscores; the first one a letter or a digit.

    Source: POSIX.1-2017, 3.282 (portable file names); Amazon S3, safe characters of object keys.

    Bad:
        [run]
        name = "my run/1"
    Bad:
        [run]
        name = ""
    Good:
        [run]
        name = "my-run_1.5b"
    """
    name = run.run.name
    if re.fullmatch(_NAME, name) or (not name and not run.name_is_required):
        return
    usable = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:64] or "run"
    shown = name if len(name) <= 64 else f"{name[:61]}..."
    yield Problem("run.name", f"{shown!r} cannot name a directory", patch={"run.name": usable})


@rule("RUN002", Severity.WARNING)
def backoff_above_its_limit(run: RunSpec) -> Iterator[Problem]:
    """backoff_s should not exceed backoff_max_s.

    the limit counts: every restart waits for backoff_max_s, and the wait never doubles

    Source: supervise/policy.py (the wait is the smaller of the two).

    Bad:
        [prime_train.restart]
        backoff_s = 120.0
    Good:
        [prime_train.restart]
        backoff_s = 30.0
    """
    restart = run.prime_train.restart
    if restart.backoff_s > restart.backoff_max_s:
        yield Problem(
            "prime_train.restart.backoff_s",
            f"{restart.backoff_s:g} s is more than `prime_train.restart.backoff_max_s` {restart.backoff_max_s:g} s",
            patch={"prime_train.restart.backoff_s": restart.backoff_max_s},
        )
