from __future__ import annotations

import json

from prime_train.core.units import GIB
from prime_train.estimate.cost.run_cost import Cost
from prime_train.estimate.estimate import Estimate
from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.memory.roles import GpusPerRole, RoleEstimate, RunMemory
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.time.rl_step_time import overlap_of
from prime_train.estimate.time.run_time import Time
from prime_train.estimate.time.throughput import Throughput
from prime_train.estimate.values import Interval, RoleMemory, Term
from prime_train.estimate.verdict import CERTAIN, IMPOSSIBLE, Chance, MemoryVerdict
from prime_train.views.estimate import text as view
from prime_train.views.estimate.document import document
from tests.golden import same_as_golden, same_text_as_golden

_SHAPE = ModelShape("org/small", 1000, 2, 64, 4, 2, 16, 128, 1_000_000, True, "config.json")
_TRAINER = RoleMemory(
    role="trainer",
    gpus=4,
    terms=(
        Term("optimizer states", 30 * GIB, "2 x 1.0 M x 4 B", "ZeRO, arXiv 1910.02054, s. 3.1"),
        Term("saved activations", 20 * GIB, "2 layers x 8 tokens", "arXiv 2205.05198, s. 4.1"),
        Term("small", 0.01 * GIB, "a", "b"),
        Term("smaller", 0.02 * GIB, "c", "d"),
    ),
    reserved=Interval(45 * GIB, 50.03 * GIB, 60 * GIB),
    outside=(Term("CUDA context", 0.5 * GIB, "", "nvidia-smi"),),
    phase="update",
)
_STEP = Interval(4.0, 5.0, 8.0)


def _cost(spot: bool, hours: float) -> Cost:
    return Cost(
        spot=spot,
        offers=3,
        usd_per_gpu_hour=Interval(1.0, 2.0, 4.0),
        gpu_hours=Interval(hours, hours, hours),
        usd=Interval(hours, 2 * hours, 4 * hours),
        run_hours=Interval(hours / 4, hours / 4, hours / 4),
        interruptions=Interval(0.0, 0.1, 1.0),
        lost_gpu_hours=Interval(0.0, 0.2, 3.0),
        prices_as_of="2026-11-01",
        undated=0,
        sources=("example.org",),
    )


def _estimate(usable_gib: float, advice: tuple[str, ...] = ()) -> Estimate:
    usable_bytes = usable_gib * GIB
    headroom = usable_bytes - _TRAINER.needed_bytes
    throughput = Throughput(_STEP, Interval(100.0, 160.0, 200.0), 0.31, "made up", Interval(0.5, 1.0, 2.0), ())
    return Estimate(
        shape=_SHAPE,
        hardware=hardware_from_name("4xh100-80gb")._replace(usable_bytes=usable_bytes),
        memory=RunMemory(
            GpusPerRole(4, 0),
            (RoleEstimate(_TRAINER, CERTAIN if headroom >= 0 else IMPOSSIBLE, headroom),),
            enough_gpus=True,
        ),
        time=Time(throughput, Interval(4.5, 6.0, 10.0), 1000, is_endless=True),
        costs=(_cost(False, 10.0), _cost(True, float("inf"))),
        assumptions=("something",),
        advice=advice,
    )


def _plain(text: str, _style: str) -> str:
    return text


def test_json() -> None:
    text = document(_estimate(79.2))
    same_as_golden("estimate.json", text)
    json.dumps(text, allow_nan=False)


def test_people() -> None:
    same_text_as_golden("estimate_fits.txt", view.text(document(_estimate(79.2)), _plain))
    same_text_as_golden(
        "estimate_too_large.txt", view.text(document(_estimate(40.0, ("lower it",))), _plain, by_term=True)
    )


def test_small_terms_share_a_line_without_by_term() -> None:
    assert "2 smaller ones" in view.text(document(_estimate(79.2)), _plain)
    by_term = view.text(document(_estimate(79.2)), _plain, by_term=True)
    assert "smaller ones" not in by_term
    assert all(f"= {term.formula}  [{term.source}]" in by_term for term in _TRAINER.terms)


def test_too_few_gpus_are_reported() -> None:
    memory = _estimate(79.2).memory._replace(gpus=GpusPerRole(8, 0), enough_gpus=False)
    text = view.text(document(_estimate(79.2)._replace(memory=memory)), _plain)
    assert "does not fit: the run needs 8 GPUs, but 4 are given" in text


def test_a_run_that_likely_fits_shows_its_probability() -> None:
    likely = Chance(MemoryVerdict.LIKELY, 0.81)
    memory = _estimate(79.2).memory._replace(roles=(RoleEstimate(_TRAINER, likely, headroom_bytes=-GIB),))
    found = _estimate(79.2)._replace(memory=memory)
    text = view.text(document(found), _plain)
    assert "likely fits (probability 81 %): trainer needs typically" in text
    assert "does not fit" not in text
    shown = document(found)["memory"]
    assert (shown["fits"], shown["verdict"], shown["probability"]) == (False, "likely fits", 0.81)
    assert shown["roles"][0]["verdict"] == "likely fits"


def test_a_gpu_without_a_price_is_reported() -> None:
    assert "cost not known: no price of h100-80gb" in view.text(document(_estimate(79.2)._replace(costs=())), _plain)


def test_idle_times_are_shown_only_with_rollouts() -> None:
    base = _estimate(79.2)
    assert base.time is not None
    overlap = overlap_of(_STEP, Interval(10.0, 20.0, 30.0), Interval(1.0, 1.0, 1.0), 1)
    time = base.time._replace(overlap=overlap)
    assert "idle" not in view.text(document(base), _plain)
    assert document(base._replace(time=time))["throughput"]["rollouts"] is None


def test_a_bar_is_never_longer_than_a_whole_gpu() -> None:
    vast = _TRAINER._replace(terms=(Term("saved activations", 1e30, "a", "b"),))
    memory = _estimate(79.2).memory._replace(roles=(RoleEstimate(vast, IMPOSSIBLE, headroom_bytes=-1e30),))
    text = view.text(document(_estimate(79.2)._replace(memory=memory)), _plain)
    assert max(len(line) for line in text.splitlines()) < 200
    assert "#" * 24 in text
    assert "#" * 25 not in text


def test_a_role_with_enough_memory_that_does_not_fit_has_a_reason() -> None:
    memory = _estimate(79.2).memory._replace(roles=(RoleEstimate(_TRAINER, IMPOSSIBLE, headroom_bytes=GIB),))
    text = view.text(document(_estimate(79.2)._replace(memory=memory)), _plain)
    assert "does not fit: trainer needs up to 60.5 GiB of 79.2 GiB, but not together with the other role" in text


def test_on_a_shared_gpu_the_sum_of_both_roles_counts() -> None:
    for headroom_bytes, part in ((-GIB, "1.0 GiB too much for both"), (GIB, "1.0 GiB free beside the other role")):
        roles = (RoleEstimate(_TRAINER, CERTAIN if headroom_bytes > 0 else IMPOSSIBLE, headroom_bytes),)
        memory = _estimate(79.2).memory._replace(roles=roles, gpus=GpusPerRole(1, 1, shared=True))
        assert part in view.text(document(_estimate(79.2)._replace(memory=memory)), _plain)


def test_a_fraction_that_is_shown_as_fitting_fits() -> None:
    for low, high in ((0.268, 0.4987), (0.27, 0.5), (0.4981, 0.4989), (0.49811, 0.49816)):
        shown = view._inside(low, high)
        _, least, _, most = shown.split()
        assert low - 1e-9 <= float(least) <= float(most) <= high + 1e-9, shown
    assert view._inside(0.268, 0.4987) == "between 0.27 and 0.49"


def test_a_run_that_does_not_fit_has_no_cost() -> None:
    text = view.text(document(_estimate(40.0)._replace(costs=())), _plain)
    assert "cost none: the run does not fit" in text
    assert "prices import" not in text
