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
