"""What a watch is created from. Pure."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.core.rundir import RunDir
from prime_train.spec import RunSpec
from prime_train.supervise.core.policy import Policy
from prime_train.supervise.launch.program import Program


class Context(NamedTuple):
    """The run, and what its watches need to know about it."""

    run: RunSpec
    run_dir: RunDir
    program: Program
    policy: Policy
