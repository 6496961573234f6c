"""How many checkpoints of prime-rl are on the disk at one time, and how large each is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prime_train.core.findings import Finding
from prime_train.facts.machine import SaveDir
from prime_train.rules.explain import BASES
from prime_train.rules.judge import lint
from tests.unit.rules.examples import facts_of, validate

RL = BASES["prime-rl 2026-08"]
NOTHING_FREE = SaveDir(Path("/runs/example"), Path("/runs"), free_bytes=0, held_bytes=0, refusal="")


def full_disk(text: str) -> list[Finding]:
    run = lint(text, "rl.toml").run
    assert run is not None
    facts = replace(facts_of({}, run), save_dir=NOTHING_FREE)
    return [item for item in validate(text, "rl.toml", facts).findings if item.code == "DSK005"]


@pytest.mark.parametrize(
    ("ckpt", "kept"),
    [
        ("interval = 50\nkeep_last = 2", "3 checkpoints of 19.2 GiB"),
        ("interval = 50\nkeep_last = 10", "4 checkpoints of"),  # steps 50, 100, 150, 200
        ("interval = 60", "4 checkpoints of"),  # and one at the end
        ("interval = 50\nkeep_last = 1\nkeep_interval = 100", "4 checkpoints of"),
        ("", "1 checkpoint of 19.2 GiB = 19.2 GiB for Qwen/Qwen3-1.7B"),
    ],
)
def test_checkpoints_are_counted(ckpt: str, kept: str) -> None:
    (finding,) = full_disk(RL.replace("interval = 50\nkeep_last = 2", ckpt))
    assert kept in finding.what


def test_unknown_models_folders_adapters_and_endless_runs_are_not_judged() -> None:
    assert full_disk(RL.replace("Qwen/Qwen3-1.7B", "mine/unheard-of")) == []
    assert full_disk(RL.replace("[ckpt]", '[ckpt]\noutput_dir = "elsewhere"')) == []
    assert full_disk(RL.replace("[trainer]", "[trainer.model.lora]\nrank = 8")) == []
    assert full_disk(RL.replace("max_steps = 200\n", "").replace("keep_last = 2\n", "")) == []


def test_other_states_are_smaller() -> None:
    (half,) = full_disk(RL.replace("[trainer]", '[trainer.model]\noptimization_dtype = "bfloat16"'))
    assert "of 9.6 GiB" in half.what
    (muon,) = full_disk(RL.replace("[trainer]", '[trainer.optim]\ntype = "muon"'))
    assert "of 12.8 GiB" in muon.what
