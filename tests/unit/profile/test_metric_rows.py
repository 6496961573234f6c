"""Rows of prime-rl become steps with the measured parts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.profile.diagnosis import diagnose
from prime_train.profile.measurement import measure
from prime_train.profile.metric_rows import idle_orchestrator, spans_of_rows


def row(number: int, **times: float) -> dict[str, Any]:
    return {"step": number, **{f"time/{name}": seconds for name, seconds in times.items()}, "perf/peak_memory": 40.0}


def test_a_wait_for_rollouts_is_decode_bound() -> None:
    rows = [row(n, step=10.0, wait_for_batch=7.0, forward_backward=2.0, broadcast_weights=0.5) for n in range(6)]
    orchestrator = [{"step": n, "time/step": 10.0, "time/wait_for_policy": 1.0} for n in range(6)]
    run = measure(list(spans_of_rows([*rows, *orchestrator])), warm_up_steps=1)
    assert run is not None
    assert run.steps == 5
    assert run.share("rollouts") == pytest.approx(0.7)
    assert run.share("other") == pytest.approx(0.05)
    assert run.memory[0].peak_bytes == 40 * 2**30
    assert diagnose(run).name == "decode-bound"
    assert idle_orchestrator(orchestrator, 1) == pytest.approx(0.1)


def test_a_repeated_step_counts_once() -> None:
    rows = [row(1, step=9.0, forward_backward=9.0), row(1, step=2.0, forward_backward=2.0)]
    run = measure(list(spans_of_rows(rows)), warm_up_steps=0)
    assert run is not None
    assert run.step_s == (2.0,)


VALUES = st.one_of(st.none(), st.booleans(), st.floats(), st.text(max_size=3), st.integers())
KEYS = st.sampled_from(["step", "time/step", "time/forward_backward", "time/wait_for_batch", "perf/peak_memory"])


@given(st.lists(st.dictionaries(KEYS, VALUES), max_size=5))
def test_any_rows_give_spans_or_none(rows: list[dict[str, Any]]) -> None:
    spans = list(spans_of_rows(rows))
    assert all(one.end_s >= one.start_s >= 0 for one in spans)
    run = measure(spans, warm_up_steps=0)
    assert run is None or run.wall_s > 0
