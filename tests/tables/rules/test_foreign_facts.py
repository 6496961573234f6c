"""Rules on facts beside a config of another program are silent where one is not known, and safe in hostile folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prime_train.config.detect import read
from prime_train.rules.judge import judge

SERVER = "vllm serve {model} --port 8000 {flags}\n"
ADAPTER = SERVER.format(model="Qwen/Qwen3-8B", flags="--enable-lora --lora-modules mine={folder}")
JOB = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --ntasks-per-node={tasks}\nsrun python train.py\n"
LIGHTNING = "from lightning import Trainer\nTrainer(devices={devices})\n"
TUNE = """\
model: {_component_: torchtune.models.llama3_2.llama3_2_1b}
dataset: {_component_: torchtune.datasets.chat_dataset, source: json, data_files: rows.jsonl}
batch_size: 8
"""
RESUME = (
    "torchrun --nproc_per_node 2 train.py --model_name_or_path m --per_device_train_batch_size 1 --output_dir out "
    "--bf16 True --deepspeed ds.json --resume_from_checkpoint ckpt\n"
)
ZERO = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": "auto"%s}'


FACTORY = """\
model_name_or_path: Qwen/Qwen3-4B
stage: sft
do_train: true
finetuning_type: lora
template: qwen3
{more}
"""


def codes(folder: Path, text: str, name: str = "job.sh") -> set[str]:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return {found.code for found in judge(read(text, str(path), None)).findings}


@pytest.mark.parametrize(
    ("model", "flags", "code", "fires"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "--tensor-parallel-size 8", "VLS001", True),
        ("Qwen/Qwen2.5-7B-Instruct", "--tensor-parallel-size $TP", "VLS001", False),
        ("someone/else", "--tensor-parallel-size 8", "VLS001", False),
        ("$MODEL", "--tensor-parallel-size 8", "VLS001", False),
        ("Qwen/Qwen3-8B", "--max-model-len 131072", "VLS002", True),
        ("Qwen/Qwen3-8B", "--max-model-len 131072 --hf-overrides '{}'", "VLS002", False),
        ("Qwen/Qwen3-8B", '--max-model-len 131072 "$@"', "VLS002", False),
    ],
)
def test_what_depends_on_the_model_needs_its_sizes(
    tmp_path: Path, model: str, flags: str, code: str, fires: bool
) -> None:
    assert (code in codes(tmp_path, SERVER.format(model=model, flags=flags))) is fires


@pytest.mark.parametrize("text", ["", "[]", '{"r": "64"}', '{"r": 8}', "[" * 100_000, '{"r": 1e999}'])
def test_an_adapter_that_cannot_be_read_or_has_room_is_no_finding(tmp_path: Path, text: str) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(text, encoding="utf-8")
    assert "VLS003" not in codes(tmp_path, ADAPTER.format(folder="adapter"))


def test_a_pipe_in_the_place_of_a_file_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    os.mkfifo(tmp_path / "adapter" / "adapter_config.json")
    os.mkfifo(tmp_path / "rows.jsonl")
    os.mkfifo(tmp_path / "train.py")
    assert "VLS003" not in codes(tmp_path, ADAPTER.format(folder="adapter"))
    assert "TTU013" not in codes(tmp_path, TUNE, "torchtune.yaml")
    assert "SLU008" not in codes(tmp_path, JOB.format(tasks=1))


@pytest.mark.parametrize(
    ("script", "tasks", "fires"),
    [
        (LIGHTNING.format(devices=4), 1, True),
        (LIGHTNING.format(devices=4), 4, False),
        (LIGHTNING.format(devices="args.devices"), 1, False),
        (LIGHTNING.format(devices="-1"), 1, False),
        (LIGHTNING.format(devices=4).replace("lightning", "mine"), 1, False),
        ("from lightning import Trainer\nTrainer(devices=4)\nTrainer(devices=2)\n", 1, False),
        ("from lightning import Trainer\n(" * 400, 1, False),
    ],
)
def test_only_numbers_in_a_script_on_lightning_are_judged(tmp_path: Path, script: str, tasks: int, fires: bool) -> None:
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    assert ("SLU008" in codes(tmp_path, JOB.format(tasks=tasks))) is fires


@pytest.mark.parametrize(
    ("rows", "fires"), [("{}\n" * 3, True), ("{}\n" * 8, False), ("[{}, {}]", True), ("[" * 100_000, False)]
)
def test_rows_are_counted_where_they_can_be(tmp_path: Path, rows: str, fires: bool) -> None:
    (tmp_path / "rows.jsonl").write_text(rows, encoding="utf-8")
    assert ("TTU013" in codes(tmp_path, TUNE, "torchtune.yaml")) is fires
    assert "TTU013" not in codes(tmp_path, TUNE.replace("batch_size: 8", "batch_size: ${size}"), "torchtune.yaml")


@pytest.mark.parametrize(("shards", "more", "fires"), [(1, "", True), (2, "", False), (0, "", False)])
def test_a_resume_is_judged_by_the_states_that_are_there(tmp_path: Path, shards: int, more: str, fires: bool) -> None:
    (tmp_path / "ds.json").write_text(ZERO % more, encoding="utf-8")
    step = tmp_path / "ckpt" / "global_step10"
    step.mkdir(parents=True)
    for rank in range(shards):
        (step / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_bytes(b"")
    assert ("DSP014" in codes(tmp_path, RESUME)) is fires
    universal = ZERO % ', "checkpoint": {"load_universal": true}'
    (tmp_path / "ds.json").write_text(universal, encoding="utf-8")
    assert "DSP014" not in codes(tmp_path, RESUME)


@pytest.mark.parametrize(
    ("gpus", "fires"), [("L4:2", True), ("H100:8", False), ("$GPU", False), ("{H100: 8, A100: 8}", False)]
)
def test_a_training_is_judged_by_gpus_that_its_file_names(tmp_path: Path, gpus: str, fires: bool) -> None:
    run = "torchrun --nproc_per_node 2 -m torchtitan.train --module llama3 --config llama3_8b --checkpoint.enable"
    text = f"resources: {{accelerators: {gpus}}}\nrun: {run}\n"
    assert ("FIT001" in codes(tmp_path, text, "sky.yaml")) is fires
    assert "FIT001" not in codes(tmp_path, text.replace("llama3_8b", "mine_8b").replace("llama3", "mine"), "sky.yaml")


def factory_codes(folder: Path, info: str, rows: str | None = None, more: str = "dataset: mine") -> set[str]:
    """The findings on data, with this dataset_info.json and these rows in mine.json."""
    (folder / "data").mkdir()
    (folder / "data" / "dataset_info.json").write_text(info, encoding="utf-8")
    if rows is not None:
        (folder / "data" / "mine.json").write_text(rows, encoding="utf-8")
    return codes(folder, FACTORY.format(more=more), "train.yaml") & {"LLF035", "LLF036"}


MINE = '{"mine": {"file_name": "mine.json"%s}}'
ALPACA = '{"instruction": "a", "input": "", "output": "b"}'


@pytest.mark.parametrize(
    ("info", "more", "found"),
    [
        ('{"yours": {}}', "dataset: mine", {"LLF035"}),
        ('{"yours": {}}', "eval_dataset: [yours, mine]", {"LLF035"}),
        ('{"yours": {}}', "dataset: yours", set()),
        ('{"yours": {}}', "dataset: mine\ndataset_dir: ONLINE", set()),
        ('{"yours": {}}', "dataset: mine\ndataset_dir: elsewhere", set()),
        ('{"yours": {}}', "dataset: ${oc.env:DATA}", set()),
        ('["mine"]', "dataset: mine", set()),
        ("not JSON", "dataset: mine", set()),
        ("[" * 100_000, "dataset: mine", set()),
        ('{"mine": null}', "dataset: mine", {"LLF035"}),
        ('{"mine": {"file_name": 3}}', "dataset: mine", set()),
        ('{"mine": {"file_name": "a\\u0000b"}}', "dataset: mine", set()),
        ('{"mine": {"file_name": "mine.json", "hf_hub_url": "a/b"}}', "dataset: mine", set()),
        (MINE % "", "dataset: mine", {"LLF036"}),  # the file is not there
    ],
)
def test_a_data_set_of_llama_factory_needs_its_entry(tmp_path: Path, info: str, more: str, found: set[str]) -> None:
    assert factory_codes(tmp_path, info, more=more) == found


@pytest.mark.parametrize(
    ("entry", "rows", "found"),
    [
        ("", f"[{ALPACA}]", set()),
        ("", f"{ALPACA}\n{ALPACA}\n", set()),
        ("", f'{{"input": "a"}}\n{ALPACA}\n', set()),  # a column that one row has is one of all rows
        ("", '[{"instruction": "a", "output": "b"}]', {"LLF036"}),
        (
            ', "columns": {"prompt": "instruction", "response": "output"}',
            '[{"instruction": "a", "output": "b"}]',
            set(),
        ),
        (', "columns": {"prompt": "q"}', f"[{ALPACA}]", {"LLF036"}),
        (', "formatting": "sharegpt"', '[{"conversations": []}]', set()),
        (', "formatting": "openai"', '[{"messages": []}]', {"LLF036"}),
        (', "formatting": "openai", "columns": {"messages": "messages"}', '[{"messages": []}]', set()),
        (', "formatting": "of a plugin"', '[{"a": 1}]', set()),
        (
            ', "ranking": true, "columns": {"prompt": "q", "chosen": "c", "rejected": "r"}',
            '[{"q": "", "c": ""}]',
            {"LLF036"},
        ),
        (
            ', "ranking": true, "columns": {"prompt": "q", "response": "x", "chosen": "c", "rejected": "r"}',
            '[{"q": "", "c": "", "r": ""}]',
            set(),
        ),
        ("", "[1, 2]", set()),
        ("", "[]", set()),
        ("", "[" * 100_000, set()),
        ("", "no rows", set()),
    ],
)
def test_the_rows_of_llama_factory_have_the_columns_that_are_mapped(
    tmp_path: Path, entry: str, rows: str, found: set[str]
) -> None:
    assert factory_codes(tmp_path, MINE % entry, rows) == found
