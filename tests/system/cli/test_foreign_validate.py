"""validate and verify-model on files of ten programs: what is missing or damaged is named, with the exit code."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import typer

from prime_train.cli.validate import validate
from prime_train.cli.verify_model import verify_model
from prime_train.core.errors import ExitCode, UserError

MODEL, DATA = "./model", "rows.jsonl"
FILES = {
    "axolotl.yaml": f"""base_model: {MODEL}
datasets: [{{path: {DATA}, type: alpaca}}]
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 2
learning_rate: 0.0002
num_epochs: 1
output_dir: ./out
""",
    "llama_factory.yaml": f"""model_name_or_path: {MODEL}
stage: sft
do_train: true
finetuning_type: lora
dataset: alpaca_en_demo
template: qwen
cutoff_len: 2048
per_device_train_batch_size: 1
bf16: true
output_dir: saves/out
""",
    "trl.yaml": f"""model_name_or_path: {MODEL}
dataset_name: {DATA}
learning_rate: 2.0e-5
max_length: 2048
per_device_train_batch_size: 2
output_dir: out
""",
    "torchtune.yaml": f"""model: {{_component_: torchtune.models.llama3_2.llama3_2_1b}}
tokenizer: {{_component_: torchtune.models.llama3.llama3_tokenizer, path: {MODEL}, max_seq_len: 2048}}
dataset: {{_component_: torchtune.datasets.chat_dataset, source: json, data_files: {DATA}}}
optimizer: {{_component_: torch.optim.AdamW, lr: 3e-4}}
batch_size: 2
dtype: bf16
""",
    "swift.sh": f"swift sft --model {MODEL} --tuner_type lora --dataset {DATA} --max_length 2048 --output_dir out\n",
    "openrlhf.sh": f"""deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --pretrain {MODEL} --dataset {DATA} \\
    --max_len 2048 --micro_train_batch_size 1 --train_batch_size 8 --save_path out --bf16
""",
    "verl.sh": f"""python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files={DATA} \\
    data.train_batch_size=256 data.max_prompt_length=512 data.max_response_length=512 \\
    actor_rollout_ref.model.path={MODEL} actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=8 trainer.n_gpus_per_node=8 trainer.nnodes=1
""",
    "job.sbatch": f"""#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
srun torchrun --standalone --nproc_per_node 8 train.py --model_name_or_path {MODEL} --per_device_train_batch_size 1 \\
    --train_file {DATA} --output_dir out --bf16 True
""",
}
# Without a path of a model: the flavor names it, or the script that the file is of.
OTHERS = {
    "torchtitan.toml": """[job]
dump_folder = "out"
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[checkpoint]
enable = true
interval = 50
""",
    "accelerate.yaml": """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 8
fsdp_config: {fsdp_version: 2}
""",
}
PARTS = re.compile(r"\[DAT003\] (\S+?):\d+:\d+ .*\n(?:.*\n)*?  what  (.+)\n  why   .+\n  fix   .+")
CONFIG = '{"model_type": "llama", "hidden_size": 8}'


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))


def validated(name: str, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """The exit code, and what is said of files that cannot be read."""
    Path(name).write_text(text, encoding="utf-8")
    code = 0
    try:
        validate([name], gpus="8xh100-80gb", offline=True)
    except typer.Exit as ended:
        code = ended.exit_code
    out = capsys.readouterr().out
    assert out.count("[DAT003]") == len(PARTS.findall(out))
    return code, [what for _, what in PARTS.findall(out)]


@pytest.mark.parametrize(("name", "text"), FILES.items())
def test_a_model_and_data_that_are_not_there_are_named(
    name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = validated(name, text, capsys)
    assert code == ExitCode.FINDINGS
    missing = {path for path in (MODEL, DATA) if path in text}
    assert {what for what in said if "no such file" in what} == {
        f"{path}: there is no such file or folder" for path in missing
    }


@pytest.mark.parametrize(("name", "text"), {**FILES, **OTHERS}.items())
def test_what_is_there_is_no_finding(name: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("model").mkdir()
    Path("model/config.json").write_text(CONFIG, encoding="utf-8")
    Path(DATA).write_text("{}\n" * 4096, encoding="utf-8")
    _, said = validated(name, text, capsys)
    assert said == []


@pytest.mark.parametrize("harm", ["pipe", "loop", "deep", "binary", "folder", "nothing"])
@pytest.mark.parametrize("name", ["axolotl.yaml", "trl.yaml", "swift.sh"])
def test_a_damaged_model_is_named(name: str, harm: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("model").mkdir()
    Path(DATA).write_text("{}\n" * 64, encoding="utf-8")
    config = Path("model/config.json")
    match harm:
        case "pipe":
            os.mkfifo(config)
        case "loop":
            config.symlink_to("config.json")
        case "deep":
            config.write_text("[" * 1_000_000, encoding="utf-8")
        case "binary":
            config.write_bytes(b"\xff\xfe\x00{")
        case "folder":
            config.mkdir()
    code, said = validated(name, FILES[name], capsys)
    assert code == ExitCode.FINDINGS
    assert len(said) == 1
    assert "config.json" in said[0]


def test_a_task_of_another_machine_has_its_files_there(capsys: pytest.CaptureFixture[str]) -> None:
    run = FILES["swift.sh"].replace(MODEL, "/data/model")
    _, said = validated("sky.yaml", f"resources: {{accelerators: H100:8}}\nrun: {run}", capsys)
    assert said == []


@pytest.mark.parametrize("name", sorted(FILES.keys() - {"torchtune.yaml"}))  # its model is a word of torchtune
def test_verify_model_names_a_model_that_is_not_there(name: str) -> None:
    Path(name).write_text(FILES[name], encoding="utf-8")
    with pytest.raises(UserError) as refused:
        verify_model(name, offline=True)
    assert refused.value.exit_code == ExitCode.USAGE
    assert all((refused.value.what, refused.value.where, refused.value.why, refused.value.fix))
    assert MODEL in refused.value.what


@pytest.mark.parametrize("name", ["nothing.yaml", "pipe.yaml", "loop.sh", "binary.json", "empty.toml"])
def test_verify_model_refuses_a_file_that_cannot_be_read(name: str) -> None:
    os.mkfifo("pipe.yaml")
    Path("loop.sh").symlink_to("loop.sh")
    Path("binary.json").write_bytes(b"\xff\xfe\x00{")
    Path("empty.toml").write_bytes(b"")
    with pytest.raises(UserError) as refused:
        verify_model(name, offline=True)
    assert refused.value.exit_code in (ExitCode.USAGE, ExitCode.FINDINGS)
    assert name in refused.value.where


def test_verify_model_takes_the_model_of_a_server() -> None:
    Path("serve.sh").write_text("vllm serve ./model --port 8000\n", encoding="utf-8")
    with pytest.raises(UserError, match=re.escape("./model")):
        verify_model("serve.sh", offline=True)
