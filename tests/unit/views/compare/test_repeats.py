"""Repeats are runs that differ in their seeds alone, and say how large the noise is."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.spec import Data, Optim, Run, RunSpec, Source
from prime_train.views.compare import repeats
from prime_train.views.compare.curves import Curves, Point
from prime_train.views.compare.repeats import Result

SPEC = RunSpec(run=Run(name="a", max_steps=10), data=Data(sources=(Source(kind="python-stdlib"),)))


def spec(name: str, seed: int, lr: float = 1e-3) -> RunSpec:
    return replace(SPEC, run=replace(SPEC.run, name=name, seed=seed), optim=Optim(lr=lr))


def curves(*losses: float, last_step: int = 100) -> Curves:
    step = last_step // len(losses)
    points = tuple(
        Point(place * step, math.nan, math.nan, loss, loss, loss) for place, loss in enumerate(losses, start=1)
    )
    return Curves({"loss": points}, ())


def test_runs_that_differ_in_name_and_seed_are_one_group() -> None:
    specs = [spec("a", 1), spec("b", 1, lr=2e-3), spec("c", 2), None, spec("d", 2, lr=2e-3), spec("e", 3)]
    assert repeats.group(specs) == [[0, 2, 5], [1, 4], [3]]


def test_the_same_seed_again_is_no_repeat() -> None:
    assert repeats.group([spec("a", 1), spec("b", 1)]) == [[0], [1]]


def test_results_are_those_of_the_steps_that_every_run_has_made() -> None:
    found = repeats.results([curves(*range(10)), curves(*range(10), last_step=50)], [[0], [1]])
    assert found[0]["loss"].mean == 4, "of step 50, not of step 100"
    assert found[1]["loss"].mean == 9


def test_a_run_without_steps_has_no_result_and_hides_none() -> None:
    found = repeats.results([curves(3.0), Curves({}, ())], [[0], [1]])
    assert (found[0]["loss"].mean, found[1]) == (3.0, {})


def result(*of: float) -> dict[str, Result]:
    return {"loss": Result(statistics.fmean(of), statistics.stdev(of) if len(of) > 1 else None, len(of))}


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        ((2.0,), (9.0,), "not known"),
        ((2.0, 2.1), (9.0,), "not known"),
        ((2.0, 2.1), (9.0, 9.1), "larger"),
        ((2.0, 3.0), (2.5, 3.5), "not larger"),
        ((2.0, 2.0), (2.0, 2.0), "not larger"),
        ((2.0, 2.0), (2.5, 2.5), "larger"),
    ],
)
def test_a_difference_is_judged_with_two_repeats_of_each(
    one: tuple[float, ...], other: tuple[float, ...], verdict: str
) -> None:
    (found,) = repeats.compare([result(*one), result(*other)])
    assert (found.verdict, found.group, found.metric) == (verdict, 1, "loss")
    assert found.difference == pytest.approx(statistics.fmean(other) - statistics.fmean(one))


def test_the_least_difference_is_that_of_the_t_test() -> None:
    """Source of the numbers: the t-test by hand. s^2 = 1, t(4) = 2.776, sqrt(1/3 + 1/3) = 0.8165."""
    (found,) = repeats.compare([result(1.0, 2.0, 3.0), result(4.0, 5.0, 6.0)])
    assert found.least == pytest.approx(2.776 * 0.8165, rel=1e-3)


@given(st.lists(st.floats(-9, 9), min_size=2, max_size=6), st.lists(st.floats(-9, 9), min_size=2, max_size=6))
def test_the_verdict_does_not_depend_on_the_order(one: list[float], other: list[float]) -> None:
    (there,) = repeats.compare([result(*one), result(*other)])
    (back,) = repeats.compare([result(*other), result(*one)])
    assert (there.verdict, there.difference) == (back.verdict, -back.difference)


def test_a_band_is_where_all_runs_have_a_value() -> None:
    found = repeats.band([[(0, 0.0), (10, 10.0)], [(2, 4.0), (4, 6.0), (20, 22.0)]])
    assert found is not None
    assert list(found.x) == [10]
    assert found.mean == pytest.approx((11.0,))


def test_runs_that_do_not_overlap_have_no_band() -> None:
    assert repeats.band([[(0, 1.0), (1, 1.0)], [(5, 1.0), (6, 1.0)]]) is None


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(-5, 5)), min_size=1, max_size=20), st.floats(-3, 3))
def test_the_mean_of_a_curve_and_its_shift_is_between_them(points: list[tuple[int, float]], shift: float) -> None:
    curve = sorted({float(x): y for x, y in points}.items())
    found = repeats.band([curve, [(x, y + shift) for x, y in curve]])
    assert found is not None
    assert list(found.mean) == pytest.approx([y + shift / 2 for _, y in curve])
    assert list(found.spread) == pytest.approx([abs(shift) / math.sqrt(2)] * len(curve))
