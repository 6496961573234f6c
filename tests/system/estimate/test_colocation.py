"""A GPU for two: the window of fractions, what it holds, and the rule of thumb where it is right."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.units import GIB
from prime_train.estimate.memory.roles import (
    FractionWindow,
    SharingRequest,
    TrainerMemory,
    fraction_in,
    share,
    window_of,
)
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.serving.server_cache import bytes_for
from prime_train.estimate.serving.server_memory import beyond_budget_bytes, inference_memory
from prime_train.estimate.serving.server_setup import default_setup
from prime_train.estimate.values import Interval, RoleMemory, Term
from prime_train.spec import Data, Run, RunSpec, Source, prime_rl_parts
from prime_train.spec.answers import prime_rl_of
from tests.unit.estimate.served import gpu, shape_of

_SMALL = "Qwen/Qwen3-0.6B"
_CARD = gpu(23.5, "rtx4090")


def _trainer(fixed_gib: float, gib_per_1k_tokens: float = 0.0) -> TrainerMemory:
    """A trainer that takes so much, and more with length; its upper bound is 10 % above."""

    def memory(ctx_tokens: int) -> RoleMemory:
        size = (fixed_gib + gib_per_1k_tokens * ctx_tokens / 1024) * GIB
        term = Term("trainer", size, "given", "test")
        context = Term("CUDA context", 0.5 * GIB, "given", "test")
        return RoleMemory("trainer", 1, (term,), Interval(size, size, 1.1 * size), (context,))

    return memory


def _ask(trainer: TrainerMemory, ctx_tokens: int = 4096, model: str = _SMALL) -> SharingRequest:
    return SharingRequest(default_setup(shape_of(model), _CARD, "0.14", ctx_tokens), _CARD, trainer)


def test_the_rule_of_thumb_comes_out_where_it_is_right() -> None:
    found = share(_ask(_trainer(9.0)))  # an adapter on 0.6B at 4096 tokens without checkpointing: 9.0 GiB
    assert found.fits
    assert (found.fraction, found.rollouts, found.group_size) == (0.5, 8, 2)


def test_the_rule_of_thumb_is_not_repeated_where_it_is_wrong() -> None:
    assert share(_ask(_trainer(3.0))).fraction > 0.6
    assert share(_ask(_trainer(3.0))).rollouts > 8
    assert share(_ask(_trainer(13.0))).fraction < 0.4


def test_the_trainer_of_a_run_is_left_its_upper_bound() -> None:
    run = RunSpec(
        run=Run(name="shared", max_steps=10),
        data=Data(sources=(Source(kind="python-stdlib"),)),
        format="prime-rl",
        prime_rl=prime_rl_parts.PrimeRl(
            launch=prime_rl_parts.LaunchPart(generation="2026-01"),
            trainer=prime_rl_parts.Trainer(activation_checkpointing=True),
            lora=prime_rl_parts.Lora(rank=16),
            deployment=prime_rl_parts.Deployment(train_gpus=1, infer_gpus=1),
        ),
    )
    shape = shape_of(_SMALL)

    def trainer(ctx_tokens: int) -> RoleMemory:
        parts = prime_rl_of(run)
        assert parts.trainer is not None
        longer = RunSpec(
            run=run.run,
            data=run.data,
            format="prime-rl",
            prime_rl=prime_rl_parts.PrimeRl(
                launch=parts.launch,
                trainer=parts.trainer._replace(ctx_tokens=ctx_tokens),
                lora=parts.lora,
                deployment=parts.deployment,
            ),
        )
        return training_memory(setup_of(longer, _CARD, shape), _CARD)

    found = share(_ask(trainer))
    assert found.fits
    left = (1 - found.fraction) * _CARD.usable_bytes
    assert trainer(found.ctx_tokens).needed_bytes + 0.5 * GIB <= left


def test_the_server_starts_first_and_the_reason_is_its_version_s() -> None:
    early = share(_ask(_trainer(9.0))._replace(serve=default_setup(shape_of(_SMALL), _CARD, "0.8.5", 4096)))
    late = share(_ask(_trainer(9.0)))
    assert early.starts_first == late.starts_first == "inference"
    assert "negative" in early.why_first
    assert "refuses to start" in late.why_first


def test_a_length_that_does_not_fit_is_answered_with_the_longest_that_does() -> None:
    ask = _ask(_trainer(6.0, 1.0), 16384)
    found = share(ask)
    assert not found.fits
    assert 0 < found.longest_ctx_tokens == found.ctx_tokens < 16384
    few = ask._replace(serve=ask.serve._replace(sequences=4))
    assert window_of(few, found.ctx_tokens).is_open
    assert not window_of(few, found.ctx_tokens + 256).is_open


def test_where_nothing_fits_nothing_is_promised() -> None:
    found = share(_ask(_trainer(40.0)))
    assert not found.fits
    assert found.longest_ctx_tokens == 0
    ask = _ask(_trainer(1.0), model="Qwen/Qwen3-32B")
    large = share(ask)
    assert not large.fits
    assert not inference_memory(ask.serve._replace(gpu_memory_fraction=large.fraction), _CARD).starts


def test_a_batch_that_a_run_asks_for_stays_where_it_fits() -> None:
    ask = _ask(_trainer(9.0))._replace(rollouts=6, group_size=3)
    found = share(ask)
    assert (found.rollouts, found.group_size, found.sequences) == (6, 3, 12)
    crowded = share(ask._replace(rollouts=512, group_size=16))
    assert crowded.fits  # vLLM starts, and lets rollouts wait
    assert (crowded.rollouts, crowded.group_size) == (8, 2)  # groups shrink with the batch: four examples stay in it
    alone = share(ask._replace(rollouts=None, group_size=16))
    assert (alone.rollouts, alone.group_size) == (8, 2)


def test_sequences_that_a_server_makes_room_for_count() -> None:
    ask = _ask(_trainer(14.5), model="Qwen/Qwen3-1.7B")
    assert share(ask._replace(serve=ask.serve._replace(sequences=8))).fits
    crowded = share(ask._replace(serve=ask.serve._replace(sequences=1024)))
    assert not crowded.fits
    assert crowded.longest_ctx_tokens == 4096  # with the fewer sequences that are advised
    assert crowded.sequences <= 8


def test_graphs_beyond_the_fraction_are_kept_free() -> None:
    before = _ask(_trainer(9.0))
    eager = before._replace(serve=before.serve._replace(eager=True))
    apart = window_of(eager, 4096).largest - window_of(before, 4096).largest
    assert apart * _CARD.usable_bytes > 0.9 * beyond_budget_bytes(before.serve)


def test_round_fractions() -> None:
    assert fraction_in(FractionWindow(0.2, 0.58)) == 0.55
    assert fraction_in(FractionWindow(0.56, 0.58)) == 0.58
    assert fraction_in(FractionWindow(0.5601, 0.5699)) == 0.5699
    assert fraction_in(FractionWindow(0.7, 0.5)) == 0.7


@given(st.floats(0.5, 30), st.floats(0, 2), st.sampled_from((1024, 4096, 8192, 40960)))
def test_what_is_recommended_fits(fixed_gib: float, gib_per_1k_tokens: float, ctx_tokens: int) -> None:
    ask = _ask(_trainer(fixed_gib, gib_per_1k_tokens), ctx_tokens)
    found = share(ask)
    if not found.longest_ctx_tokens:
        return
    assert found.window.smallest <= found.fraction <= found.window.largest + 1e-8
    assert found.rollouts % found.group_size == 0
    served = ask.serve._replace(
        gpu_memory_fraction=found.fraction, ctx_tokens=found.ctx_tokens, sequences=found.sequences
    )
    assert inference_memory(served, _CARD).starts
    assert inference_memory(served, _CARD).kv_bytes.low >= bytes_for(served, found.ctx_tokens, found.sequences)


@given(st.floats(0.5, 20), st.floats(0.1, 5))
def test_a_larger_trainer_never_leaves_more(fixed_gib: float, more_gib: float) -> None:
    small, large = share(_ask(_trainer(fixed_gib))), share(_ask(_trainer(fixed_gib + more_gib)))
    assert large.window.largest < small.window.largest
    assert large.longest_ctx_tokens <= small.longest_ctx_tokens


def test_the_window_that_is_reported_is_that_of_the_sequences_asked_for() -> None:
    ask = _ask(_trainer(3.0))
    found = share(ask)
    assert found.fits
    assert found.window == window_of(ask, 4096)
    served = ask.serve._replace(gpu_memory_fraction=found.window.smallest + 0.001)
    assert inference_memory(served, _CARD).starts
    assert not inference_memory(served._replace(gpu_memory_fraction=found.window.smallest - 0.05), _CARD).starts
