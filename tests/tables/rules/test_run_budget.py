"""What a run may take against what it is expected to: measured before, estimated, or not to be known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prime_train.core.findings import Finding, Severity
from prime_train.facts.facts import RunFolder
from prime_train.facts.machine import Gpu, VisibleGpus
from prime_train.rules.explain import BASE, BASES
from prime_train.rules.judge import lint
from tests.unit.rules.examples import facts_of, validate

RL = BASES["prime-rl 2026-08"]
SFT = BASES["prime-rl 2026-08 sft"] + "[deployment]\nnum_gpus = 8\n"
H100 = VisibleGpus((Gpu("NVIDIA H100 80GB HBM3", 85899345920, (9, 0)),) * 8)
NO_GPU = VisibleGpus((), "no NVIDIA driver")


def budgeted(text: str, budget: str, gpus: VisibleGpus = H100, **folder: Any) -> list[Finding]:
    text = f"{text}\n[prime_train]\n{budget}\n"
    run = lint(text, "run.toml").run
    assert run is not None
    facts = replace(facts_of({}, run), gpus=gpus, run_folder=RunFolder(Path("/runs/example"))._replace(**folder))
    return [item for item in validate(text, "run.toml", facts).findings if item.code in ("RUN005", "RUN006")]


def test_measured_steps_count() -> None:
    (finding,) = budgeted(RL, "budget_hours = 2", step_s=72.0, timed_steps=20)
    assert finding.severity is Severity.WARNING
    assert finding.what == "200 steps take 4 h, at 72 s a step as in /runs/example; the budget is 2 h"
    assert finding.fix == "max_steps = 100, or more hours"
    assert budgeted(RL, "budget_hours = 4.5", step_s=72.0, timed_steps=20) == []


def test_too_few_measured_steps_do_not_count() -> None:
    (finding,) = budgeted(RL, "budget_hours = 2", NO_GPU, step_s=72.0, timed_steps=9)
    assert finding.severity is Severity.NOTE
    assert "not known: there is no GPU whose speed is known (no NVIDIA driver)" in finding.what


def test_without_a_previous_run_the_step_is_estimated() -> None:
    (finding,) = budgeted(SFT, "budget_hours = 0.0001")
    assert finding.severity is Severity.WARNING
    assert "by the estimate on" in finding.what
    assert budgeted(SFT, "budget_hours = 10000") == []


def test_the_price_is_that_of_the_machines_gpus() -> None:
    (finding,) = budgeted(RL, "budget_usd = 1", step_s=72.0, timed_steps=20)
    assert finding.severity is Severity.WARNING
    assert finding.what.startswith("4 x h100-80gb cost ")  # two that train, two that serve
    assert budgeted(RL, "budget_usd = 1e6", step_s=72.0, timed_steps=20) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (RL.replace("max_steps = 200\n", ""), "the run has no end: max_steps is not set"),
        (SFT.replace("Qwen/Qwen3-1.7B", "mine/unheard-of"), "the registry does not have mine/unheard-of"),
    ],
)
def test_a_budget_that_cannot_be_judged_is_reported(text: str, reason: str) -> None:
    for budget in ("budget_hours = 1", "budget_usd = 1"):
        (finding,) = budgeted(text, budget)
        assert finding.severity is Severity.NOTE
        assert reason in finding.what


def test_a_run_without_a_budget_is_not_judged() -> None:
    assert budgeted(BASE, "stop_grace_s = 9.0") == []
