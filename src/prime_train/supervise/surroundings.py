"""Gathers what the plan of an environment needs to know: this process and its limits."""

from __future__ import annotations

import os
import resource

from prime_train.supervise.launch.environment import Host
from prime_train.supervise.process import usable_cores


def host(supervisor: str) -> Host:
    """What is known here and now. `supervisor`: "PID:START_TICKS"."""
    return Host(os.environ, usable_cores(), supervisor, resource.getrlimit(resource.RLIMIT_NOFILE))
