"""The estimate of a run of rewards by the bundled trainer: what each setting adds, and GPUs that both sides share."""

from __future__ import annotations

import pytest

from prime_train.config import detect
from prime_train.estimate.advice import Case, Keys, advise
from prime_train.estimate.estimate import Estimate, estimate
from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.model.shape import shape_from_registry
from prime_train.estimate.relayout import Impossible, Relayout, relayout
from prime_train.spec import RunSpec
from prime_train.spec.answers import server_gpus

_CONFIG = """\
[run]
name = "example"
kind = "rl"
max_steps = 100
[model]
path = "Qwen/Qwen3-0.6B"
[tokenizer]
path = "Qwen/Qwen3-0.6B"
[data]
ctx_tokens = 1024
[[tasks]]
kind = "calculator"
[batch]
micro_batch = 4
global_batch = 64
[precision]
compute = "bf16"
"""
_SERVER = "[inference]\ngpu_memory_fraction = 0.5\n"
_PARAMETERS = 596.0e6


def read(more: str = "") -> RunSpec:
    run = detect.read(_CONFIG + more, "run.toml", None).run
    assert run is not None
    return run


def estimated(more: str = "", gpus: str = "1xh100-80gb") -> Estimate:
    shape = shape_from_registry("Qwen/Qwen3-0.6B")
    assert shape is not None
    return estimate(read(more), hardware_from_name(gpus), shape)


def terms(found: Estimate) -> dict[str, float]:
    """Name -> bytes, of the trainer."""
    return {term.name: term.bytes for term in found.memory.roles[0].memory.terms}


def test_the_trainers_own_engine_has_two_sets_of_weights_and_two_caches() -> None:
    found = terms(estimated("[rl]\nconcurrency = 32\n"))
    embedding = 151_936 * 1024  # in fp32; the head, which is tied to it, is a copy in bf16
    assert found["engine's weights"] == pytest.approx(2 * (4 * embedding + 2 * _PARAMETERS), rel=0.01)
    assert found["engine's KV cache"] == 2 * 32 * (1024 + 64) * 2 * 28 * 8 * 128 * 2
    assert "reference model" not in found


def test_a_reference_is_a_second_copy_of_the_weights() -> None:
    found = terms(estimated(f"{_SERVER}[rl]\nkl_coef = 0.01\n"))
    assert found["reference model"] == pytest.approx(4 * _PARAMETERS, rel=0.01)
    assert "engine's weights" not in found


def test_a_reference_lengthens_a_step_by_a_forward() -> None:
    plain, referenced = estimated(_SERVER).time, estimated(f"{_SERVER}[rl]\nkl_coef = 0.01\n").time
    assert plain is not None
    assert referenced is not None
    assert plain.overlap is not None
    grown = referenced.step_s.typical - plain.step_s.typical
    assert grown == pytest.approx(plain.throughput.step_s.typical / 3, rel=0.01)


def test_adapters_have_an_optimizer_and_the_base_has_none() -> None:
    found = terms(estimated(f"{_SERVER}[model.lora]\nrank = 16\n"))
    assert found["frozen base"] == pytest.approx(4 * _PARAMETERS, rel=0.01)
    assert found["optimizer states"] == pytest.approx(2 * found["adapter parameters"])
    assert found["adapter parameters"] < found["frozen base"] / 20


def test_fewer_adapted_layers_are_smaller() -> None:
    one = terms(estimated(f'{_SERVER}[model.lora]\nrank = 16\ntargets = ["query"]\n'))
    every = terms(estimated(f"{_SERVER}[model.lora]\nrank = 16\n"))
    assert one["adapter parameters"] < every["adapter parameters"] / 5


def test_trainer_and_server_share_one_gpu_and_not_two() -> None:
    one, two = estimated(_SERVER).memory, estimated(_SERVER, "2xh100-80gb").memory
    assert (one.gpus.shared, one.gpus.all, one.enough_gpus) == (True, 1, True)
    assert one.sharing is not None
    assert one.sharing.starts_first == "inference"
    assert (two.gpus.shared, two.gpus.all, two.sharing) == (False, 2, None)


def test_a_pretraining_with_served_tasks_shares_the_gpu_and_has_no_rollouts() -> None:
    text = _CONFIG.replace('kind = "rl"', 'kind = "pretrain"') + '[[data.sources]]\nkind = "python-stdlib"\n'
    run = detect.read(f"{text}[inference]\ngpu_memory_fraction = 0.95\n", "run.toml", None).run
    shape, hardware = shape_from_registry("Qwen/Qwen3-0.6B"), hardware_from_name("1xh100-80gb")
    assert run is not None
    assert shape is not None
    found = estimate(run, hardware, shape)
    assert (found.memory.gpus.shared, found.memory.fits) == (True, False)
    assert [role.served is not None for role in found.memory.roles] == [False, True]
    assert "engine's weights" not in terms(found)
    (line, _) = advise(Case(run, hardware, shape, found.memory), Keys(str, bool))
    assert "inference.gpu_memory_fraction = 0." in line
    assert "rollout" not in line


def test_sides_that_share_a_gpu_take_turns() -> None:
    one, two = estimated(_SERVER).time, estimated(_SERVER, "2xh100-80gb").time
    assert one is not None
    assert two is not None
    assert one.rollouts is not None
    assert one.step_s.typical > two.step_s.typical
    apart = max(two.throughput.step_s.typical, one.rollouts.seconds.typical)
    hand_over = 2 * _PARAMETERS / 1.5e9  # in bf16, at the rate of a measured transfer by disk
    assert two.step_s.typical == pytest.approx(apart + hand_over, rel=0.01)


@pytest.mark.parametrize("fraction", [0.02, 0.95])
def test_a_fraction_outside_the_window_does_not_fit(fraction: float) -> None:
    found = estimated(f"[inference]\ngpu_memory_fraction = {fraction}\n")
    assert not found.memory.fits
    shape, hardware = found.shape, found.hardware
    run = read(f"[inference]\ngpu_memory_fraction = {fraction}\n")
    lines = advise(Case(run, hardware, shape, found.memory), Keys(str, bool))
    assert any("inference.gpu_memory_fraction = 0." in line for line in lines)


def test_the_server_keeps_its_gpus_where_a_run_is_laid_out() -> None:
    laid = relayout(read(_SERVER), hardware_from_name("5xh100-80gb"))
    assert isinstance(laid, Relayout)
    assert (laid.run.parallel.processes, server_gpus(laid.run)) == (4, 1)
    shared = relayout(read(_SERVER), hardware_from_name("1xh100-80gb"))
    assert isinstance(shared, Relayout)
    assert shared.run == read(_SERVER)
    wide = read(f"{_SERVER}tensor_parallel = 4\n")
    assert isinstance(relayout(wide, hardware_from_name("2xh100-80gb")), Impossible)


def test_rows_have_the_mean_length_of_a_rollout() -> None:
    found = estimated("[rl]\nanswer_tokens = 100\n").time
    assert found is not None
    words = "prompts of 512 tokens, answers of 50 on average and 100 at most, one turn: rows of 562 tokens"
    assert words in found.assumptions
