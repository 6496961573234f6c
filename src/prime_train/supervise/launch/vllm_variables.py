"""The environment variables that vLLM needs with any launcher, by its version. Pure."""

from __future__ import annotations

import re

from prime_train.supervise.launch.launch import Variable
from prime_train.supervise.launch.roles import EnvNote

V1 = "VLLM_USE_V1"
_V1_DEFAULT = (0, 8)  # vLLM 0.8.0 made V1 the default
_V0_GONE = (0, 11)  # 0.11.0 has no V0 (vllm#25033), and 0.11.1 does not know the variable (vllm-ascend#4086)
_READY_S = (
    4200  # as in prime-rl's launcher, because a large model takes longer to compile and capture than vLLM's own 600 s
)


def list_engine_variables(version: str | None) -> tuple[Variable, ...]:
    """What every vLLM of this version gets, also that of another launcher. None: the version is not known."""
    known = _parse_version(version)
    older = (
        (Variable(V1, "0", f"vLLM {version} has both engines, and its V1 has died without an error message"),)
        if known is not None and _V1_DEFAULT <= known < _V0_GONE
        else ()
    )
    return (
        *older,
        Variable("VLLM_WORKER_MULTIPROC_METHOD", "spawn", "a fork after the start of CUDA or threads fails or hangs"),
        Variable("VLLM_ENGINE_READY_TIMEOUT_S", str(_READY_S), "a large model takes longer to start than vLLM's 600 s"),
        Variable("VLLM_NO_USAGE_STATS", "1", "vLLM reports each start to a server on the internet"),
    )


def explain_v1(by_hand: str | None, version: str | None) -> tuple[EnvNote, ...]:
    """Why VLLM_USE_V1 is not set; nothing for the versions that have both engines."""
    known = _parse_version(version)
    if known is None:
        why = "the version of vLLM is not known; only 0.8 to 0.10 have a choice of engines"
    elif known >= _V0_GONE:
        why = f"vLLM {version} has one engine: 0.11 removed the other one and this variable"
    elif known < _V1_DEFAULT:
        why = f"vLLM {version} uses the older engine by default"
    else:
        return ()
    if by_hand is None:
        return (EnvNote("left out", V1, "", why),)
    return (EnvNote("ignored" if known is not None and known >= _V0_GONE else "kept", V1, by_hand, why),)


def _parse_version(text: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else None
