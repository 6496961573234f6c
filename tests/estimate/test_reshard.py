"""The advice on parallel.reshard, from what a step waits for and what is free."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prime_train.estimate.reshard import Shards, advise_reshard, exposed_s, shards_from_measured
from prime_train.events import ShardsMeasured
from prime_train.supervise.event_text import describe

SLOW_GATHER = Shards(True, gather_s=1.0, compute_s=0.6, kept_bytes=2e9, free_bytes=10e9, all_bytes=80e9)


def test_a_slow_gather_is_kept_where_it_fits() -> None:
    advice = advise_reshard(SLOW_GATHER)
    assert advice.startswith("parallel.reshard = false saves up to 0.6 s of 2.0 s per")
    assert advise_reshard(SLOW_GATHER._replace(free_bytes=2.1e9)) == ""
    assert advise_reshard(SLOW_GATHER._replace(gather_s=0.3)) == "", "the backward hides it"
    assert advise_reshard(SLOW_GATHER._replace(reshards=False)) == ""


def test_little_free_memory_is_a_reason_to_drop_them() -> None:
    tight = SLOW_GATHER._replace(reshards=False, free_bytes=1e9)
    assert advise_reshard(tight).startswith("parallel.reshard = true frees 1.9 GiB, of which")


seconds = st.floats(0.001, 10.0)


@given(reshards=st.booleans(), gather_s=seconds, compute_s=seconds)
def test_compute_is_found_behind_the_waits(reshards: bool, gather_s: float, compute_s: float) -> None:
    true = SLOW_GATHER._replace(reshards=reshards, gather_s=gather_s, compute_s=compute_s)
    whole_s = compute_s + exposed_s(true, reshards=reshards)
    found = shards_from_measured(
        reshards=reshards, gather_s=gather_s, micro_batch_s=whole_s, kept_bytes=2e9, free_bytes=1e10, all_bytes=8e10
    )
    assert 0.95 * whole_s <= found.compute_s + exposed_s(found, reshards=reshards) <= 1.001 * whole_s
    assert found.compute_s <= 1.001 * max(compute_s, whole_s)


def test_the_event_of_the_trainer_has_the_advice_of_the_estimate() -> None:
    found = ShardsMeasured(1, 20, True, 1.0, 2.0, 2 * 10**9, 10**10, 8 * 10**10)
    assert describe(found).startswith("gathering all blocks takes 1000 ms of 2000 ms per micro-batch; parallel.reshard")
    hidden = ShardsMeasured(1, 20, True, 0.1, 2.0, 2 * 10**9, 10**10, 8 * 10**10)
    assert describe(hidden) == "gathering all blocks takes 100 ms of 2000 ms per micro-batch"
