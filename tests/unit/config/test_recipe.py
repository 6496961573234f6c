from __future__ import annotations

import pytest

from prime_train.config import detect, recipe
from prime_train.rules.judge import lint
from prime_train.spec import ENDLESS_STEPS
from prime_train.spec.prime_rl_parts import Recipe

_TEXT = """[recipe]
program = "torchtune"
model_name = "meta-llama/Llama-3.1-8B-Instruct"
gpus = 2
sharding = "fsdp"
ctx_tokens = 2048
micro_batch = 4
adapter = "lora"
adapter_rank = 16
adapter_targets = ["q_proj", "v_proj"]
compile = true
"""


def test_a_recipe_becomes_a_run() -> None:
    reading = detect.read(_TEXT, "tune.toml")
    assert reading.dialect == "recipe"
    assert reading.faults == ()
    assert reading.run is not None
    assert reading.run.recipe == Recipe(
        program="torchtune",
        model_name="meta-llama/Llama-3.1-8B-Instruct",
        gpus=2,
        sharding="fsdp",
        ctx_tokens=2048,
        micro_batch=4,
        adapter="lora",
        adapter_rank=16,
        adapter_targets=("q_proj", "v_proj"),
        compile=True,
    )
    assert reading.run.run.max_steps == ENDLESS_STEPS
    assert reading.run.format == "recipe"


def test_a_run_table_beside_it_counts() -> None:
    run = detect.read(_TEXT + '[run]\nname = "x"\nmax_steps = 70\n', "tune.toml").run
    assert run is not None
    assert (run.run.name, run.run.max_steps) == ("x", 70)


def test_a_clean_recipe_lints_clean() -> None:
    assert lint(_TEXT, "tune.toml").findings == ()


def test_files_of_other_dialects_are_no_recipe() -> None:
    assert detect.read("[run]\nmax_steps = 1\n", "run.toml").dialect == "prime-train"
    assert detect.read("recipe = 3\n[run]\nmax_steps = 1\n", "run.toml").dialect == "prime-train"
    assert detect.is_config(_TEXT, "tune.toml")


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ('sharding = "fsdp3"', "CFG005", "fsdp"),
        ("micro_batch = -1", "CFG004", "> 0"),
        ("micro_batch = 0", "CFG004", "> 0"),
        ('ctx_tokens = "2k"', "CFG003", "2k"),
        ("seq_len = 4096", "CFG002", "recipe.ctx_tokens"),
        ("per_device_train_batch_size = 2", "CFG002", "recipe.micro_batch"),
        ("adapter_targets = []", "CFG004", "at least 1"),
        ("ctx_tokns = 4096", "CFG002", "ctx_tokens"),
    ],
)
def test_a_fault_is_reported_with_what_is_legal(line: str, code: str, told: str) -> None:
    verdict = lint(f'[recipe]\nprogram = "hf"\n{line}\n', "tune.toml")
    assert [finding.code for finding in verdict.findings] == [code]
    assert told in verdict.findings[0].what + verdict.findings[0].fix
    assert verdict.findings[0].span.line == 3


def test_another_objective_is_repaired_to_none_that_means_something_else() -> None:
    """A letter away is dpo, which trains on pairs of answers and not on rewards."""
    (finding,) = lint('[recipe]\nprogram = "hf"\nobjective = "ppo"\n', "tune.toml").findings
    assert (finding.code, finding.patch) == ("CFG005", {})
    assert "sft, dpo, grpo" in finding.what


def test_a_text_that_is_not_toml_makes_no_run() -> None:
    reading = detect.read('[recipe]\nprogram = "hf"\ngpus = = 2\n', "tune.toml")
    assert reading.run is None
    assert reading.faults


def test_every_choice_names_a_field_of_a_recipe() -> None:
    assert set(recipe._CHOICES) <= set(Recipe._fields)
