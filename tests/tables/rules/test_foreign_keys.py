"""Keys that another program does not have: reported where its keys are known, and only there."""

from __future__ import annotations

import pytest

from prime_train.core.findings import Severity
from prime_train.registry.foreign_keys import legal_keys
from tests.unit.rules.examples import judge_files

AXOLOTL = """base_model: m
adapter: lora
lora_target_linear: true
datasets: [{path: d, type: alpaca}]
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 4
"""
LLAMA_FACTORY = """model_name_or_path: m
stage: sft
do_train: true
finetuning_type: lora
dataset: d
template: qwen
cutoff_len: 2048
output_dir: out
"""
TRL = """model_name_or_path: m
dataset_name: d
use_peft: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
num_train_epochs: 1
output_dir: out
"""
ACCELERATE = "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 8\nnum_machines: 1\n"
DEEPSPEED = '{"train_batch_size": 8, "zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}\n'
JOB = "accelerate launch --num_processes 8 train.py --per_device_train_batch_size 2 --output_dir out --bf16 True {}\n"
NONE: tuple[tuple[str, Severity], ...] = ()


def _found(name: str, text: str) -> tuple[tuple[str, Severity], ...]:
    findings = judge_files({name: text}).findings
    return tuple((one.key, one.severity) for one in findings if one.code == "KEY001")


SLIPS = [
    ("axolotl.yaml", AXOLOTL + "context_parapllel_size: 2\n", ("context_parapllel_size", Severity.WARNING)),
    ("lf.yaml", LLAMA_FACTORY + "lora_rnk: 8\n", ("lora_rnk", Severity.ERROR)),
    ("trl.yaml", TRL + "lr_scheduler_typ: cosine\n", ("lr_scheduler_typ", Severity.WARNING)),
    ("accelerate.yaml", ACCELERATE + "machine_rnk: 0\n", ("machine_rnk", Severity.ERROR)),
    (
        "deepspeed.json",
        DEEPSPEED.replace('"stage"', '"overlap_com": true, "stage"'),
        ("zero_optimization.overlap_com", Severity.ERROR),
    ),
    (
        "deepspeed.json",
        DEEPSPEED.replace('"bf16"', '"gradient_cliping": 1.0, "bf16"'),
        ("gradient_cliping", Severity.WARNING),
    ),
    ("job.sh", JOB.format("--gradient_acumulation_steps 2"), ("gradient_acumulation_steps", Severity.WARNING)),
]
OTHER_WORDS = [
    ("axolotl.yaml", AXOLOTL + "my_setting: 2\n", ("my_setting", Severity.WARNING)),
    ("lf.yaml", LLAMA_FACTORY + "my_setting: 2\n", ("my_setting", Severity.WARNING)),
    ("accelerate.yaml", ACCELERATE + "my_setting: 2\n", ("my_setting", Severity.WARNING)),
]
SILENT = [
    ("axolotl.yaml", AXOLOTL),
    ("axolotl.yaml", AXOLOTL + "my_setting:\n"),  # null is not given
    ("axolotl.yaml", AXOLOTL + "plugins: [mine.Plugin]\nmy_setting: 2\n"),  # the plug-in may have it
    ("lf.yaml", LLAMA_FACTORY),
    ("trl.yaml", TRL + "my_setting: 2\nenv: {A: '1'}\n"),  # the script may have it
    ("hf.yaml", TRL.replace("use_peft: true\n", "").replace("dataset_name: d", "warmup_steps: 5\nblock_size: 8")),
    ("accelerate.yaml", ACCELERATE + "fsdp_config: {my_setting: 2}\n"),  # keys below are not known
    ("deepspeed.json", DEEPSPEED.replace('"bf16"', '"my_setting": 1, "bf16"')),
    ("job.sh", JOB.format("--my_setting 2 --warmup_rat 0.1 --no_remove_unused_columns")),  # argparse completes flags
]


@pytest.mark.parametrize(("name", "text", "found"), [*SLIPS, *OTHER_WORDS])
def test_a_key_that_the_program_does_not_have(name: str, text: str, found: tuple[str, Severity]) -> None:
    assert _found(name, text) == (found,)


@pytest.mark.parametrize(("name", "text"), SILENT)
def test_a_key_that_may_exist_is_left_alone(name: str, text: str) -> None:
    assert _found(name, text) == NONE


def test_a_key_beside_the_one_that_it_is_like_is_another_one() -> None:
    """A later version may have both, so a refusal is not certain."""
    assert _found("lf.yaml", LLAMA_FACTORY + "lora_rank: 8\nlora_rankk: 8\n") == (("lora_rankk", Severity.WARNING),)


@pytest.mark.parametrize("format_", ["axolotl", "llama-factory", "trl", "hf", "accelerate", "deepspeed"])
def test_the_names_are_plain_and_of_each_table(format_: str) -> None:
    tables = legal_keys(format_)
    assert tables[0].at == ""
    assert all(table.unknown in ("refused", "ignored", "open") and table.why for table in tables)
    assert all(name.isidentifier() for table in tables for name in table.names)
    assert all(len(table.names) >= 5 for table in tables)
