"""Forty combinations: each chosen config is clean, fits, and is nearly as fast as the fastest of a grid."""

from __future__ import annotations

import pytest

from prime_train.choose.choose import choose
from prime_train.choose.sizes import HEADROOM
from prime_train.choose.wishes import Budget, ChosenData, GpuPlace, Task
from prime_train.core.errors import ExitCode, UserError
from prime_train.estimate.hardware import hardware_from_name
from prime_train.facts.earlier_saves import EarlierSaves
from prime_train.facts.facts import Facts
from prime_train.facts.host import parse_gpus
from prime_train.prices import store
from prime_train.rules import judge
from tests.unit.choose.combinations import COMBINATIONS, Combination, choose_for, find_fastest, wish

# An engine makes the grid large: bench/init.py searches it for all forty.
_QUICK = [one for one in COMBINATIONS if one.task != "rl"] + [one for one in COMBINATIONS if one.gpus == "1xrtx-4090"]


def test_there_are_forty() -> None:
    assert len(set(COMBINATIONS)) == 40


@pytest.mark.spread
@pytest.mark.parametrize("combination", COMBINATIONS, ids=" ".join)
def test_a_chosen_config_is_clean_and_fits(combination: Combination) -> None:
    _, chosen = choose_for(combination)
    assert chosen.estimate.fits
    assert judge.lint(chosen.text, "run.toml").findings == ()
    assert judge.judge(chosen.reading, Facts(gpus=parse_gpus(combination.gpus))).findings == ()


@pytest.mark.parametrize("task", ["pretrain", "sft", "rl"])
def test_a_config_with_few_steps_is_clean(task: Task) -> None:
    combination = next(one for one in COMBINATIONS if one.task == task)
    for steps in (1, 2, 3, 4, 5, 29, 30, 31):
        chosen = choose(wish(combination, steps=steps))
        assert judge.lint(chosen.text, "run.toml").findings == (), steps


@pytest.mark.spread
@pytest.mark.parametrize("combination", dict.fromkeys(_QUICK), ids=" ".join)
def test_it_is_nearly_as_fast_as_the_fastest_of_a_grid(combination: Combination) -> None:
    wishes, chosen = choose_for(combination)
    assert chosen.reading.run is not None
    assert chosen.estimate.time is not None
    fastest = find_fastest(wishes, chosen.reading.run, is_fine=False)
    assert chosen.estimate.time.step_s.typical <= 1.15 * fastest


@pytest.mark.parametrize(
    ("task", "generation", "gpus", "machines"),
    [
        ("sft", "2026-01", "1xh100-80gb", 1),
        ("sft", "2026-05", "8xh100-80gb", 1),
        ("sft", "2026-08", "2xh100-80gb", 1),
        ("sft", "2026-05", "16xh100-80gb", 2),
        ("sft", "2026-08", "16xh100-80gb", 2),
        ("rl", "2026-05", "16xh100-80gb", 2),
        ("rl", "2026-08", "32xh100-80gb", 4),
    ],
)
def test_a_file_for_prime_rl_is_clean_and_fits(task: Task, generation: str, gpus: str, machines: int) -> None:
    combination = Combination(task, "Qwen/Qwen3-4B", gpus, "gsm8k" if task == "rl" else "")
    hardware = hardware_from_name(gpus)
    place = GpuPlace(hardware._replace(gpus_per_node=hardware.gpus // machines), machines)
    data = None if task == "rl" else ChosenData("hf-dataset", "lab/chats")
    chosen = choose(wish(combination, trainers=(generation,), place=place, data=data))
    assert chosen.estimate.fits
    assert judge.lint(chosen.text, "run.toml").findings == ()
    assert (chosen.reading.root, chosen.reading.generation) == (task, generation)
    assert chosen.estimate.memory.gpus.all == hardware.gpus
    assert ("multi_node" in chosen.text, "[slurm]" in chosen.text) == (machines > 1, machines > 1)
    if task == "sft":
        assert "would need" in chosen.text or "the whole step" in chosen.text, "the micro-batch has its reason"


def test_a_tenth_of_each_gpu_stays_free() -> None:
    for combination in COMBINATIONS:
        if combination.task != "rl":  # an engine fills its part of a GPU
            wishes, chosen = choose_for(combination)
            usable_bytes = wishes.place.hardware.usable_bytes
            assert all(
                role.memory.needed_bytes <= (1 - HEADROOM) * usable_bytes for role in chosen.estimate.memory.roles
            )


def test_every_size_has_a_reason() -> None:
    _, chosen = choose_for(COMBINATIONS[0])
    whys = {setting.key: setting.why for setting in chosen.draft.settings}
    assert "would need" in whys["batch.micro_batch"]
    assert "slower" in whys["model.recompute"]
    assert all(whys[key] for key in ("run.max_steps", "data.ctx_tokens", "optim.lr", "checkpoint.interval_steps"))


def test_what_would_fit_is_advised() -> None:
    with pytest.raises(UserError) as refused:
        choose(wish(Combination("sft", "meta-llama/Llama-3.1-70B", "2xh100-80gb")))
    assert refused.value.exit_code == ExitCode.FINDINGS
    assert "are needed of the 79.2 GiB of a GPU" in refused.value.why
    assert "--gpus 8xh100-80gb" in refused.value.fix
    advised = choose(wish(Combination("sft", "meta-llama/Llama-3.1-70B", "8xh100-80gb")))
    assert advised.estimate.fits


def test_an_adapter_that_was_refused_is_advised() -> None:
    with pytest.raises(UserError) as refused:
        choose(wish(Combination("sft", "Qwen/Qwen3-4B", "1xh100-80gb"), adapter=False))
    assert refused.value.fix.startswith("--lora")


def test_steps_stay_within_the_budget_by_the_upper_bound() -> None:
    prices = store.load(store.today())
    chosen = choose(wish(Combination("sft", "Qwen/Qwen3-0.6B", "1xrtx-4090"), budget=Budget(usd=0.5)), prices)
    assert chosen.reading.run is not None
    assert chosen.reading.run.run.max_steps < 1000
    on_demand = next(cost for cost in chosen.estimate.costs if not cost.spot)
    assert on_demand.usd.high <= 0.51


def test_a_budget_for_no_training_is_refused() -> None:
    with pytest.raises(UserError, match="fewer than 20"):
        choose(wish(Combination("sft", "Qwen/Qwen3-4B", "1xh100-80gb"), budget=Budget(hours=0.001)))


def test_steps_that_were_asked_for_are_not_cut() -> None:
    with pytest.raises(UserError) as refused:
        choose(wish(Combination("sft", "Qwen/Qwen3-4B", "1xh100-80gb"), steps=100_000, budget=Budget(hours=10)))
    assert refused.value.fix.startswith("--steps ")


def _choose_saves(**place: object) -> tuple[int, str]:
    combination = Combination("pretrain", "Qwen/Qwen3-0.6B", "1xrtx-4090")
    found = GpuPlace(hardware_from_name(combination.gpus), **place)  # type: ignore[arg-type]
    settings = choose(wish(combination, place=found)).draft.settings
    return next((one.value, one.why) for one in settings if one.key == "checkpoint.interval_steps")


def test_saves_are_as_frequent_as_earlier_runs_allow() -> None:
    fast = EarlierSaves("first", 5, 7_000_000_000, 0.01, 20.0, in_background=True)
    slow = fast._replace(run="slow", stall_s=8.0)
    other = fast._replace(run="other", in_background=False, stall_s=100.0)
    (steps, why), (slower, _) = (_choose_saves(is_spot=True, saves=(other, one, other)) for one in (fast, slow))
    assert steps < slower
    assert "measured on run first, whose 6.5 GiB took 20 s" in why
    assert "on spot machines" in why
    assert "estimated from" in _choose_saves(is_spot=True)[1]


def test_spot_machines_stop_more_often_than_others() -> None:
    assert _choose_saves(is_spot=True)[0] < _choose_saves()[0]
    assert _choose_saves(is_spot=True, interruptions_per_hour=1.0)[0] < _choose_saves(is_spot=True)[0]
