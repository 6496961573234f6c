"""The room for the next checkpoint, to the byte; and how fast a disk fills, to the look."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from prime_train.checkpoints.cleanup import QUIET_S, Deletion, Keep, Kind, StoredItem, Wholeness
from prime_train.supervise.watches.disk.room import (
    DiskLimits,
    DiskRoom,
    Doing,
    Trend,
    UsedPoint,
    WantedBytes,
    choose_deletions,
    compute_needs,
    compute_room,
    list_in_writing,
    slope,
)
from prime_train.supervise.watches.disk.sample import DiskSample, Space

NOW_S = 1_790_000_000.0
LIMITS = DiskLimits(delete=False, margin_bytes=7, margin_ratio=0.5)
DOING = Doing("run")


def item(
    step: int, size_bytes: int = 100, kind: Kind = "checkpoint", wholeness: Wholeness = "complete", age_s: float = 1e6
) -> StoredItem:
    return StoredItem(kind, step, (Path(f"{kind}_{step}"),), size_bytes, wholeness, NOW_S - age_s)


def sample(*items: StoredItem, free_bytes: int = 1000) -> DiskSample:
    return DiskSample(0.0, (Space("/data", 1, free_bytes, 10_000, 10**6, 10**7),), 5000, items)


def room(*items: StoredItem, keep: Keep = Keep(), limits: DiskLimits = LIMITS, doing: Doing = DOING) -> DiskRoom | None:  # noqa: B008
    return compute_room(sample(*items), doing, keep, limits, NOW_S)


@pytest.mark.parametrize(
    ("free_bytes", "deletable_bytes", "later_bytes", "fits", "fits_again"),
    [(99, 0, 100, False, True), (100, 0, 99, True, False), (60, 40, 101, True, True), (60, 39, 0, False, False)],
)
def test_a_checkpoint_fits_where_the_room_is_exactly_its_size(
    free_bytes: int, deletable_bytes: int, later_bytes: int, fits: bool, fits_again: bool
) -> None:
    found = DiskRoom(100, free_bytes, deletable_bytes, later_bytes)
    assert (found.fits, found.fits_again) == (fits, fits_again)


@pytest.mark.parametrize(
    ("items", "doing", "need_bytes"),
    [
        ([], DOING, None),
        ([], replace(DOING, first_save_bytes=200), 200 + 7 + 100),
        ([item(10, 300)], replace(DOING, first_save_bytes=200), 300 + 7 + 150),
        ([item(10, 300)], replace(DOING, is_running=False), None),
        ([item(10, 900), item(20, 100), item(30, 300), item(40, 200)], DOING, 300 + 7 + 150),
        ([item(40, 200), item(30, 300), item(20, 900)], DOING, 900 + 7 + 450),
        ([item(10, 100), item(20, 300, wholeness="unfinished"), item(30, 300, kind="weights")], DOING, 100 + 7 + 50),
    ],
)
def test_the_next_checkpoint_needs_as_much_as_the_largest_of_the_last_three(
    items: list[StoredItem], doing: Doing, need_bytes: int | None
) -> None:
    found = room(*items, doing=doing)
    assert (None if found is None else found.need_bytes) == need_bytes


@pytest.mark.parametrize(
    ("writing", "keep", "counted"),
    [
        (item(30, 40, wholeness="unfinished", age_s=0), Keep(), True),
        (item(30, 40, wholeness="unfinished", age_s=QUIET_S - 1), Keep(), True),
        (item(30, 40, wholeness="unfinished", age_s=QUIET_S), Keep(), False),
        (item(30, 40, wholeness="unfinished", age_s=QUIET_S), Keep(saving_step=30), True),
        (item(30, 40, wholeness="unfinished", age_s=QUIET_S), Keep(saving_step=31), False),
        (item(20, 40, wholeness="unfinished", age_s=0), Keep(), False),
        (item(10, 40, wholeness="unfinished", age_s=0), Keep(saving_step=10), False),
        (item(30, 40, wholeness="broken", age_s=0), Keep(), False),
        (item(30, 40, kind="weights", wholeness="unfinished", age_s=0), Keep(), False),
    ],
)
def test_a_save_in_flight_has_taken_its_room_already(writing: StoredItem, keep: Keep, counted: bool) -> None:
    items = [item(20), writing]
    assert list_in_writing(items, keep, NOW_S) == ([writing] if counted else [])
    found = room(*items, keep=keep)
    assert found is not None
    assert found.free_bytes == 1000 + (40 if counted else 0)


def test_the_first_save_of_a_run_is_in_flight_beside_no_other() -> None:
    first = item(10, 40, wholeness="unfinished", age_s=0)
    assert list_in_writing([first], Keep(), NOW_S) == [first]


@pytest.mark.parametrize(
    ("keep", "limits", "deletable_bytes", "later_bytes"),
    [
        (Keep(), {}, 0, 900),
        (Keep(keep_last=2), {}, 0, 1000),  # the trainer deletes step 10 once step 21 is complete
        (Keep(keep_last=1), {}, 0, 900),  # the trainer should have deleted step 10 before, and has not
        (Keep(keep_last=1, saving_step=21), {}, 0, 1100),
        (Keep(keep_last=1), {"delete": True}, 100, 1100),
        (Keep(keep_last=1, loading_step=20), {"delete": True}, 0, 1100),
    ],
)
def test_what_may_go_makes_room(keep: Keep, limits: dict[str, Any], deletable_bytes: int, later_bytes: int) -> None:
    found = room(item(10), item(20), keep=keep, limits=replace(LIMITS, **limits))
    assert found is not None
    assert (found.deletable_bytes, found.later_bytes) == (deletable_bytes, later_bytes)


SPACE = Space("/data", 1, 1000, 10_000, 10**6, 10**7)


@pytest.mark.parametrize(
    ("found", "full_s", "limits", "wanted"),
    [
        (None, inf, {}, WantedBytes(500, -inf, -inf, 500)),
        (None, 60.0, {}, WantedBytes(inf, -inf, -inf, 500)),
        (None, inf, {"max_disk_gb": 3e-6}, WantedBytes(500, 2000, 2000, 500)),
        (DiskRoom(1100, 1050, 50, 0), inf, {}, WantedBytes(500, 50, -inf, 500)),
        (DiskRoom(1100, 1050, 49, 0), inf, {}, WantedBytes(500, -inf, -inf, 500)),
        (DiskRoom(1100, 1050, 50, 0), inf, {"max_disk_gb": 3e-6}, WantedBytes(500, 2000 + 1100 - 50, 2000, 500)),
        (DiskRoom(1100, 1050, 49, 0), inf, {"max_disk_gb": 3e-6}, WantedBytes(500, 2000, 2000, 500)),
    ],
)
def test_what_is_wanted_of_a_disk(
    found: DiskRoom | None, full_s: float, limits: dict[str, Any], wanted: WantedBytes
) -> None:
    asked = DiskLimits(max_used_ratio=0.85, **limits)
    assert compute_needs(sample(), SPACE, found, full_s, asked) == pytest.approx(wanted)


def test_the_last_resort_goes_for_hard_wants_alone() -> None:
    going = [Deletion(item(10), "old"), Deletion(item(20), "older", last_resort=True)]
    assert choose_deletions(going, WantedBytes(150, 0, 0, 0)) == (going[0],)
    assert choose_deletions(going, WantedBytes(0, 100, 0, 0)) == (going[0],)
    assert choose_deletions(going, WantedBytes(0, 101, 0, 0)) == tuple(going)
    assert choose_deletions(going, WantedBytes(0, 0, 0, 0)) == ()


def trend(*looks: tuple[float, float]) -> Trend:
    found = Trend()
    for at_s, used_bytes in looks:
        found = found.add(UsedPoint(at_s, used_bytes))
    return found


def test_a_rate_needs_its_number_of_looks() -> None:
    looks = [(10.0 * number, 50.0 * number) for number in range(6)]
    assert trend(*looks[:5]).fast_bytes_per_s is None
    assert trend(*looks).fast_bytes_per_s == 5.0
    hours = [(60.0 * number, 120.0 * number) for number in range(40)]
    assert trend(*hours[:39]).slow_bytes_per_s is None  # a point of the slow history takes two of these looks
    assert trend(*hours).slow_bytes_per_s == 2.0


def test_a_look_at_the_same_moment_counts_for_no_rate() -> None:
    assert trend(*((10.0 * number, 50.0 * number) for number in range(6)), (50.0, 9e9)).fast_bytes_per_s == 5.0


def test_a_minute_of_looks_becomes_one_point() -> None:
    found = trend((0.0, 1.0), (30.0, 5.0), (59.9, 9.0))
    assert (found.slow, len(found.minute)) == ((), 3)
    found = found.add(UsedPoint(60.0, 7.0))
    assert (found.slow, found.minute) == ((UsedPoint(60.0, 6.0),), ())


def test_the_latest_looks_and_the_last_hour_are_kept() -> None:
    found = trend(*((60.0 * number, float(number)) for number in range(130)))
    assert [point.used_bytes for point in found.fast] == list(range(118, 130))
    assert (len(found.slow), found.slow[-1].at_s) == (60, 129 * 60.0)


def test_the_lesser_half_of_an_hour_is_its_rate() -> None:
    steep = tuple(UsedPoint(60.0 * number, 60.0 * 3 * number) for number in range(10))
    flat = tuple(UsedPoint(600.0 + 60.0 * number, 60.0 * number) for number in range(10))
    assert Trend(slow=(*steep, *flat)).slow_bytes_per_s == pytest.approx(1)
    assert Trend(slow=(*flat, *steep)).slow_bytes_per_s == pytest.approx(1)


@pytest.mark.parametrize(
    ("points", "bytes_per_s"),
    [
        ([UsedPoint(5, 5)], 0.0),
        ([UsedPoint(5, 5), UsedPoint(5, 9)], 0.0),
        ([UsedPoint(0, 0), UsedPoint(10, 30)], 3.0),
        ([UsedPoint(0, 1), UsedPoint(1, 0), UsedPoint(2, 3), UsedPoint(3, 2)], 0.6),
    ],
)
def test_the_slope_is_the_line_that_fits_best(points: list[UsedPoint], bytes_per_s: float) -> None:
    assert slope(points) == pytest.approx(bytes_per_s)
