"""estimate, find, validate and verify-model take the config of another trainer, and list what it leaves open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from prime_train.cli.estimate.command import estimate
from prime_train.cli.find import find
from prime_train.cli.validate import validate
from prime_train.cli.verify_model import model_of_config
from prime_train.core.errors import UserError

AXOLOTL = """base_model: Qwen/Qwen3-8B
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
bf16: auto
optimizer: adamw_torch_fused
learning_rate: 1.0e-5
num_epochs: 1
"""
TRAINER = """model_name_or_path: Qwen/Qwen3-0.6B
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
learning_rate: 1.0e-5
num_train_epochs: 1
block_size: 2048
bf16: true
gradient_checkpointing: true
logging_steps: 10
output_dir: out
"""
TITAN = """[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "8B"
[training]
batch_size = 1
seq_len = 8192
[activation_checkpoint]
mode = "full"
"""


pytestmark = pytest.mark.usefixtures("offline_folder")


def estimated(
    name: str, text: str, gpus: str, capsys: pytest.CaptureFixture[str], *, as_json: bool = False
) -> tuple[int, str]:
    Path(name).write_text(text)
    code = 0
    try:
        estimate([name], gpus=gpus, as_json=as_json, offline=True)
    except typer.Exit as end:
        code = end.exit_code
    return code, capsys.readouterr().out


def test_a_training_that_cannot_fit_is_reported_before_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    """pytorch/torchtitan, issue 620: Llama-3-8B on two RTX 4090: 16 B a parameter over two GPUs."""
    code, text = estimated("llama3_8b.toml", TITAN, "2xrtx-4090", capsys)
    assert code == 1
    assert "does not fit" in text
    assert "types of torchtitan: weights fp32" in text
    assert "training.seq_len = " in text


def test_each_assumption_is_in_the_text_and_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = estimated("a.yaml", AXOLOTL, "8xh100-80gb", capsys)
    _, shown = estimated("a.yaml", AXOLOTL, "8xh100-80gb", capsys, as_json=True)
    assumptions = json.loads(shown)["assumptions"]
    assert any(line.startswith("types of axolotl: weights bf16") for line in assumptions)
    assert any('activation_checkpointing = "none" (gradient_checkpointing)' in line for line in assumptions)
    assert any("8 GPUs train, all available ones" in line for line in assumptions)
    assert any(line.startswith("no measured run of axolotl") for line in assumptions)
    assert all(line.split(";")[0] in text for line in assumptions)
    assert not any("recipe." in line for line in assumptions)


def test_advice_is_in_the_words_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = estimated("a.yaml", AXOLOTL, "8xh100-80gb", capsys)
    assert "gradient_checkpointing: true" in text
    assert "micro_batch_size: 1" in text
    assert "chunked_cross_entropy: true" in text


def test_both_versions_of_transformers_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = estimated("t.yaml", TRAINER, "1xh100-80gb", capsys)
    assert "transformers 4 loads weights in fp32" in text
    assert "with weight_dtype fp32 it is" in text


def test_a_number_that_only_the_run_knows_makes_no_certain_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    unknown = TRAINER.replace("batch_size: 2", "batch_size: ${BATCH}")
    code, text = estimated("t.yaml", unknown, "1xh100-80gb", capsys)
    assert code == 0
    assert "likely fits (probability 50 %)" in text
    assert "advice" not in text
    assert "not known: micro_batch: per_device_train_batch_size = ${BATCH}; one sequence is counted, up to " in text
    code, text = estimated("t.yaml", unknown.replace("0.6B", "32B"), "1xrtx-4090", capsys)
    assert code == 1
    assert "does not fit" in text


def test_a_setting_that_is_not_known_makes_no_refusal_that_it_may_avoid(capsys: pytest.CaptureFixture[str]) -> None:
    tight = AXOLOTL.replace("adamw_torch_fused", "galore_adamw").replace("8B", "4B") + "gradient_checkpointing: true\n"
    code, text = estimated("a.yaml", tight, "1xa100-40gb", capsys)
    assert code == 0
    assert "likely fits (probability 50 %)" in text
    assert "not known: optimizer: optimizer = galore_adamw" in text
    code, text = estimated("a.yaml", tight, "1xh200", capsys)
    assert "likely fits (probability 50 %)" not in text


def test_what_decides_the_memory_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError) as raised:
        estimated("a.yaml", AXOLOTL + "deepspeed: mine.json\n", "8xh100-80gb", capsys)
    assert raised.value.what == "sharding is not known: deepspeed = mine.json; the file is not there"
    Path("mine.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}')
    _, text = estimated("a.yaml", AXOLOTL + "deepspeed: mine.json\n", "8xh100-80gb", capsys)
    assert "master weights fp32" in text


def test_a_file_without_a_model_asks_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError) as raised:
        estimated("t.yaml", TRAINER.replace("model_name_or_path: Qwen/Qwen3-0.6B\n", ""), "h100-80gb", capsys)
    assert raised.value.what == "no model is named"
    assert raised.value.fix == "--model-config with a config.json"
    with pytest.raises(UserError) as raised:
        estimated("t.toml", TITAN.replace("8B", "mine"), "h100-80gb", capsys)
    assert raised.value.what == "the model is not known: llama3 mine"


def test_a_program_whose_types_were_not_looked_up_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError) as raised:
        estimated("r.toml", '[recipe]\nprogram = "areal"\nmodel_name = "Qwen/Qwen3-0.6B"\n', "h100-80gb", capsys)
    assert raised.value.what == "no estimate for areal"


def test_find_spreads_the_training_over_offers(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.yaml").write_text(AXOLOTL + "gradient_checkpointing: true\nmax_steps: 100\n")
    find("a.yaml", as_json=True, offline=True)
    shown = json.loads(capsys.readouterr().out)
    assert shown["offers"]
    assert shown["work"]["sequences_per_step"] == 8
    assert any(line.startswith("weights bf16") for line in shown["assumptions"])


def test_validate_judges_memory_and_the_program_s_packages_and_model(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.yaml").write_text(AXOLOTL)
    with pytest.raises(typer.Exit):
        validate(["a.yaml"], gpus="8xh100-80gb", offline=True)
    shown = capsys.readouterr().out
    assert "MEM005" in shown
    assert "[SRV002] a.yaml:1:1  base_model = Qwen/Qwen3-8B" in shown  # HF_HUB_OFFLINE is set, and the cache is empty
    with pytest.raises(typer.Exit):
        validate(["a.yaml"], python="python3", offline=True)
    assert "has no axolotl" in capsys.readouterr().out


def test_validate_judges_no_machine_if_the_sharding_is_open(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.yaml").write_text(AXOLOTL + "deepspeed: mine.json\n")
    validate(["a.yaml"], gpus="1xrtx-4090", offline=True)
    shown = capsys.readouterr()
    assert "the file alone is checked" in shown.err
    assert "MEM005" not in shown.out


def test_verify_model_takes_the_model_of_a_config() -> None:
    Path("a.yaml").write_text(AXOLOTL)
    assert model_of_config("a.yaml") == "Qwen/Qwen3-8B"
    Path("none.yaml").write_text(TRAINER.replace("model_name_or_path: Qwen/Qwen3-0.6B\n", ""))
    with pytest.raises(UserError) as raised:
        model_of_config("none.yaml")
    assert raised.value.what == "no model is named"
