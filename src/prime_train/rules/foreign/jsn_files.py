"""JSON files that one program reads and another refuses. Judges no setting."""

from __future__ import annotations

import json
from collections.abc import Iterator

from prime_train.config.parsed_config import Fault, Reading
from prime_train.core.findings import Severity
from prime_train.rules.rule import file_rule

_READ_STRICTLY = frozenset({"accelerate", "axolotl", "hf", "llama-factory", "ms-swift", "trl"})  # with json.load


@file_rule("JSN001", Severity.WARNING)
def llama_factory_in_json(reading: Reading) -> Iterator[Fault]:
    """A config of LLaMA-Factory should be called .yaml, not .json.

    since January 2026 the path and not the file is given to json.load, which stops with an AttributeError; older
    releases read the file

    Source: LLaMA-Factory@ff6d4d12e:src/llamafactory/hparams/parser.py:123.

    Bad:
        # file sft.json
        {
          "model_name_or_path": "Qwen/Qwen3-4B",
          "stage": "sft",
          "finetuning_type": "lora",
          "template": "qwen3"
        }
    Good:
        # file sft.yaml
        {
          "model_name_or_path": "Qwen/Qwen3-4B",
          "stage": "sft",
          "finetuning_type": "lora",
          "template": "qwen3"
        }
    """
    for part in reading.foreign or ():
        if part.format == "llama-factory" and not part.at and part.document.path.endswith(".json"):
            what = "the config of LLaMA-Factory is a .json file"
            yield Fault("JSN001", (next(iter(part.values)),), what, "rename it to .yaml: JSON is YAML, too")


@file_rule("JSN002", Severity.ERROR)
def deepspeed_with_comments(reading: Reading) -> Iterator[Fault]:
    """A DeepSpeed file that a trainer reads must be strict JSON.

    the trainer and accelerate read it with json.load, which stops at a comment or a comma before a bracket; DeepSpeed
    itself reads both

    Source: accelerate@16cb6eb80:src/accelerate/utils/deepspeed.py:143;
    DeepSpeed@edaa72212:deepspeed/runtime/config.py:699.

    Bad:
        # file accelerate.yaml
        distributed_type: DEEPSPEED
        num_processes: 8
        deepspeed_config:
          deepspeed_config_file: ds.json
        # file ds.json
        {
          "zero_optimization": {"stage": 2},
        }
    Good:
        # file accelerate.yaml
        distributed_type: DEEPSPEED
        num_processes: 8
        deepspeed_config:
          deepspeed_config_file: ds.json
        # file ds.json
        {
          "zero_optimization": {"stage": 2}
        }
    """
    parts = reading.foreign or ()
    if _READ_STRICTLY.isdisjoint(part.format for part in parts):
        return
    for part in parts:
        if part.format == "deepspeed" and not part.at and part.document.path.endswith(".json"):
            try:
                json.loads(part.document.text)
            except ValueError as error:
                what = f"no strict JSON: {error}"
                fix = "take out the comments, and the commas before a closing bracket"
                yield Fault("JSN002", (next(iter(part.values)),), what, fix, document=part.document)
