from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.unit.cli.commands import prime_train

QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
PRICES = """[[price]]
provider = "lambda"
gpu = "h100-80gb"
gpus = 8
usd_per_gpu_hour = 4.0
source = "test"
as_of = "{day}"

[[price]]
provider = "vast"
gpu = "h100-80gb"
gpus = 8
usd_per_gpu_hour = 2.0
source = "test"
as_of = "{day}"

[[price]]
provider = "verda"
gpu = "h100-80gb"
gpus = 8
usd_per_gpu_hour = 0.5
spot = true
source = "test"
as_of = "{day}"

[[price]]
provider = "vast"
gpu = "rtx-4090"
gpus = 1
usd_per_gpu_hour = 0.3
source = "test"
as_of = "{day}"
"""
SFT = """max_steps = 100

[prime_train]
prime_rl = "2026-08"

[deployment]
num_train_gpus = 1

[model]
name = "Qwen/Qwen3-8B"

[data]
seq_len = 2048
batch_size = 16
micro_batch_size = 4 #
"""
MODEL = ("--model", "Qwen/Qwen3-8B", "--model-config", "config.json", "--prices", "prices.toml", "--offline")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    (tmp_path / "prices.toml").write_text(PRICES.format(day="2026-01-02"))
    return tmp_path


def find(*arguments: str, here: Path) -> CompletedProcess[str]:
    return prime_train("find", *arguments, cwd=here, PRIME_TRAIN_CACHE=str(here / "cache"))


def document(*arguments: str, here: Path) -> Any:
    done = find(*arguments, "--json", here=here)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_offers_are_ranked_by_the_whole_run(here: Path) -> None:
    done = find(*MODEL, here=here)
    assert done.returncode == 0, done.stderr
    title, work, header, *rows, told = done.stdout.splitlines()
    assert work == "priced: 1,000 steps of 64 sequences, 262.1 M tokens on each offer"
    assert told == "settings for offer 1: deployment.num_train_gpus = 8"
    assert title.startswith("Qwen/Qwen3-8B: full fine-tuning")
    assert header.split()[-6:] == ["HOURS", "LOW", "TYPICAL", "HIGH", "MEMORY", "SEEN"]
    assert [row.split()[1:3] for row in rows] == [["8xh100-80gb", "vast"], ["8xh100-80gb", "lambda"]]
    assert "1 offer left out: the run does not fit into the memory" in done.stderr
    assert "1 offer left out: spot" in done.stderr
    assert "2 older than 30 days" in done.stderr
    assert "2 to 30 min for the start" in done.stderr


def test_json_has_three_figures_for_each_total(here: Path) -> None:
    told = document(*MODEL, "--spot", here=here)
    assert told["version"] == 1
    assert [offer["provider"] for offer in told["offers"]] == ["verda", "vast", "lambda"]
    for place, offer in enumerate(told["offers"], start=1):
        assert offer["rank"] == place
        assert offer["memory"]["needed_gib"] < offer["memory"]["usable_gib"]
        for total in ("usd", "run_hours", "gpu_hours", "step_s", "interruptions"):
            assert offer[total]["low"] <= offer[total]["typical"] <= offer[total]["high"]
    assert told["offers"][0]["interruptions"]["high"] > told["offers"][1]["interruptions"]["high"]
    assert told["left_out"] == [{"why": "the run does not fit into the memory", "offers": 1}]


RECIPE = """[run]
max_steps = 1000

[recipe]
program = "trl"
model_name = "Qwen/Qwen3-0.6B"
gpus = 8
ctx_tokens = 2048
micro_batch = 2
"""


def test_the_batch_of_a_recipe_is_per_gpu_and_every_offer_trains_on_the_same_tokens(here: Path) -> None:
    (here / "recipe.toml").write_text(RECIPE)
    told = document("recipe.toml", "--prices", "prices.toml", here=here)
    assert told["work"]["tokens"] == 1000 * 8 * 2 * 2048
    by_gpus = {offer["gpus_in_all"]: offer for offer in told["offers"]}
    assert {offer["tokens"] for offer in told["offers"]} == {told["work"]["tokens"]}
    assert {gpus: (offer["steps"], offer["sequences_per_step"]) for gpus, offer in by_gpus.items()} == {
        1: (1000, 16),
        8: (1000, 16),
    }
    assert by_gpus[1]["settings"] == {"recipe.gpus": 1, "recipe.micro_batches_per_step": 8}


def test_steps_that_were_priced_stand_at_the_offer_where_they_are_not_those_of_the_config(here: Path) -> None:
    (here / "recipe.toml").write_text(RECIPE.replace("gpus = 8\n", "").replace("micro_batch = 2", "micro_batch = 1"))
    done = find("recipe.toml", "--prices", "prices.toml", here=here)
    assert done.returncode == 0, done.stderr
    assert "1,000 steps of 1 sequence, 2.0 M tokens on each offer (counted on one GPU, because" in done.stdout
    assert "8xh100-80gb, 125 steps of 8" in done.stdout


def test_estimate_and_find_report_the_same_of_an_offer(here: Path) -> None:
    (here / "sft.toml").write_text(SFT)
    offer = document("sft.toml", *MODEL[2:], here=here)["offers"][0]
    assert offer["settings"] == {"deployment.num_train_gpus": 8, "data.micro_batch_size": 2}
    (here / "set.toml").write_text(SFT.replace("num_train_gpus = 1", "num_train_gpus = 8").replace("= 4 #", "= 2 #"))
    gpus, model = f"{offer['gpus_in_all']}x{offer['gpu']}", ("--model-config", "config.json", "--offline")
    done = prime_train("estimate", "set.toml", "--gpus", gpus, *model, "--prices", "prices.toml", "--json", cwd=here)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(role["gpus"], role["fits"]) for role in told["memory"]["roles"]] == [(8, True)]
    each = told["memory"]["roles"][0]["per_gpu"]
    assert each["high_gib"] + each["outside_allocator_gib"] == pytest.approx(offer["memory"]["needed_gib"], abs=0.1)
    assert told["throughput"]["step_s"]["typical"] == pytest.approx(offer["step_s"]["typical"], abs=1e-3)


def test_a_server_alone_has_no_cost_to_be_ranked_by(here: Path) -> None:
    (here / "infer.toml").write_text('[model]\nname = "Qwen/Qwen3-8B"\nmax_model_len = 4096\n')
    done = find("infer.toml", here=here)
    assert done.returncode == 1
    assert "it trains nothing" in done.stderr


def test_a_small_run_takes_one_machine(here: Path) -> None:
    offers = document("quickstart", "--prices", "prices.toml", here=here)["offers"]
    assert {offer["provider"]: offer["machines"] for offer in offers} == {"vast": 1, "lambda": 1}


def test_limits(here: Path) -> None:
    assert [offer["provider"] for offer in document(*MODEL, "--max-usd-per-hour", "20", here=here)["offers"]] == [
        "vast"
    ]
    done = find(*MODEL, "--gpus-max", "4", here=here)
    assert done.returncode == 1
    assert "1x" in done.stderr
    assert "comes closest" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "a config or a model is missing"),
        (("quickstart", "--model", "Qwen/Qwen3-8B"), 2, "both a config and a model"),
        (("gone.toml",), 2, "there is no such file"),
        (("quickstart", "--max-usd-per-hour", "nan"), 2, "nan USD an hour"),
        (("quickstart", "--max-usd-per-hour=-1"), 2, "-1 USD an hour"),
        (("quickstart", "--prices", "gone.toml"), 2, "there is no such file"),
        (("quickstart", "--prices", "nan.toml"), 2, "column usd_per_gpu_hour"),
        (("--model", 'a"b'), 2, "not the name of a model"),
        (("--model", ""), 2, "not the name of a model"),
        (("quickstart", "--prime-rl", "2026-99"), 2, "no generation of prime-rl"),
        (("--model", "lab/unheard-of", "--offline"), 4, "lab/unheard-of"),
        (("broken.toml",), 1, "broken.toml:"),
    ],
)
def test_wrong_use_is_reported_in_four_parts(arguments: tuple[str, ...], code: int, said: str, here: Path) -> None:
    (here / "nan.toml").write_text(PRICES.format(day="2026-01-02").replace("= 0.5", "= nan"))
    (here / "broken.toml").write_text('[run]\nname = "x"\nmax_steps = "many"\n')
    done = find(*arguments, here=here)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert done.stdout == ""
    labels = [line.strip().split(" ")[0] for line in done.stderr.splitlines()]
    assert {"error:", "what", "why", "fix"} <= set(labels)


def test_json_is_one_document_where_nothing_fits(here: Path) -> None:
    done = find(*MODEL, "--gpus-max", "4", "--json", here=here)
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert (told["offers"], told["error"]["exit_code"]) == ([], 1)
    assert told["work"]["steps"] == 1000
