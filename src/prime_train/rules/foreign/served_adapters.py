"""The adapters that a vLLM server is started with: whether it has room for their rank. Reads adapter_config.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prime_train.config.foreign.follow import find_file
from prime_train.config.foreign.values import ForeignPart
from prime_train.config.parsed_config import Fault, Reading
from prime_train.core import outside
from prime_train.core.findings import Severity
from prime_train.rules.rule import file_rule

_DEFAULT_RANK = 16  # registry/vllm_arguments.json
_MOST_BYTES = 2**20


@file_rule("VLS003", Severity.ERROR)
def rank_above_the_most(reading: Reading) -> Iterator[Fault]:
    """The rank of an adapter is at most `--max-lora-rank` of the server.

    vLLM refuses the adapter when it loads it: the room for adapters is made at the start

    An adapter is judged if its folder is there.

    Source: vllm/lora/peft_helper.py, validate_legal (vLLM 0.32.0); vllm#2847; unsloth#2097.

    Bad:
        # file job.sh
        vllm serve Qwen/Qwen3-8B --port 8000 --enable-lora --lora-modules mine=adapter
        # file adapter/adapter_config.json
        {"peft_type": "LORA", "r": 64}
    Good:
        # file job.sh
        vllm serve Qwen/Qwen3-8B --port 8000 --enable-lora --max-lora-rank 64 --lora-modules mine=adapter
        # file adapter/adapter_config.json
        {"peft_type": "LORA", "r": 64}
    """
    for server in reading.foreign or ():
        most = server.values.get("max_lora_rank", _DEFAULT_RANK) if server.format == "vllm-serve" else None
        if type(most) is not int or getattr(server.values, "is_partial", False):
            continue
        for name in _folders(server.values.get("lora_modules")):
            rank = None if server.moved else _read_rank(name, server)
            if rank is not None and rank > most:
                what = f"the adapter {name} has rank {rank}, and the server takes {most}"
                yield Fault(
                    "VLS003", (*server.at, "lora_modules"), what, f"--max-lora-rank {rank}", document=server.document
                )


def _folders(modules: Any) -> Iterator[str]:
    """The folders of `--lora-modules name=folder ...`. An entry in JSON is left out."""
    for module in modules if isinstance(modules, list) else [modules]:
        name, equals, folder = module.partition("=") if isinstance(module, str) else ("", "", "")
        if name and equals and folder and "{" not in name:
            yield folder


def _read_rank(folder: str, server: ForeignPart) -> int | None:
    path = find_file(f"{folder.rstrip('/')}/adapter_config.json", server.document.path)
    if path is None:
        return None
    try:
        config = outside.read_json(path, _MOST_BYTES)
    except (OSError, ValueError):
        return None
    rank = config.get("r") if isinstance(config, dict) else None
    return rank if type(rank) is int else None
