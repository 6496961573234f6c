"""The presets of larger models have the published settings, and what they leave as a comment is right too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prime_train.config import detect
from prime_train.spec import Benchmark, RunSpec, Source

PRESETS = Path(__file__).parents[3] / "presets"
NAMES = ("gpt2-124m", "llama3-8b-continue", "moe-small")


def read_text(name: str) -> str:
    return (PRESETS / f"{name}.toml").read_text(encoding="utf-8")


def read_run(text: str) -> RunSpec:
    reading = detect.read(text, "preset.toml")
    assert reading.run is not None, reading
    return reading.run


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_states_that_it_was_never_run_on_a_gpu(name: str) -> None:
    assert "It was never run on a GPU (docs/gpu.md)." in read_text(name)


def test_gpt2_has_the_settings_and_the_targets_of_its_reproductions() -> None:
    text = read_text("gpt2-124m")
    run = read_run(text)
    assert (run.run.max_steps, run.batch.global_batch_tokens, run.data.ctx_tokens) == (19_073, 524_288, 1024)
    assert (run.schedule.kind, run.optim.lr, run.schedule.min_lr_ratio) == ("cosine", 6e-4, 0.1)
    assert (run.model.path, run.model.init, run.model.pad_vocab) == ("gpt2", "random", True)
    assert run.data.sources[0].path == "HuggingFaceFW/fineweb-edu"
    assert {"3.2924", "0.2945"} <= set(re.findall(r"\d\.\d{4}", text))


def test_gpt2_reads_local_shards_and_hellaswag_without_the_comment_signs() -> None:
    text = re.sub(r'^# (\[\[.+\]\]|kind = ".+"|path = ".+")$', r"\1", read_text("gpt2-124m"), flags=re.MULTILINE)
    run = read_run(text)
    assert run.data.sources[1] == Source(kind="tokens", path="edu_fineweb10B")
    assert run.eval.benchmarks == (Benchmark(kind="hellaswag", path="hellaswag_val.jsonl"),)


def test_the_small_mixture_balances_its_experts_and_the_8b_model_is_sharded() -> None:
    moe, large = read_run(read_text("moe-small")), read_run(read_text("llama3-8b-continue"))
    assert (moe.model.experts, moe.model.experts_per_token, moe.model.shared_experts) == (64, 8, 1)
    assert (moe.model.router, moe.model.expert_balance_rate) == ("sigmoid", 0.001)
    assert (large.model.path, large.model.init) == ("Llama-3.1-8B", "weights")
    assert (large.parallel.dp_shard, large.data.ctx_tokens) == (8, 8192)
