"""The disk is told of in time, a healthy one never, and a pause comes while there is room for the save it makes."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from prime_train.checkpoints.cleanup import Deletion, Keep, StoredItem
from prime_train.supervise.watches.disk.judge import DiskHistory, judge
from prime_train.supervise.watches.disk.room import DiskLimits, Doing, Trend, UsedPoint
from prime_train.supervise.watches.disk.sample import DiskSample, Refusal, Space
from prime_train.supervise.watches.sample_lines import dump, load
from prime_train.supervise.watches.watch import Alarm

GB = 10**9
NOW_S = 1_790_000_000.0
INTERVAL_S = 10.0


@dataclass
class Disk:
    """A disk and a run on it, in steps of ten seconds: what is written, kept and deleted is reckoned in bytes."""

    total_bytes: float = 1000 * GB
    others_bytes: float = 0.0
    one_bytes: float = 20 * GB
    save_every: int = 60  # looks
    save_takes: int = 3  # looks
    keep_last: int = 2
    keep_every_saves: int = 0
    trainer_deletes: bool = True
    we_delete: bool = False
    limits: DiskLimits = field(default_factory=lambda: DiskLimits(delete=False, max_used_ratio=1.0))
    saved: dict[int, float] = field(default_factory=dict)  # step -> bytes written
    pinned: set[int] = field(default_factory=set)
    look: int = 0
    memory: DiskHistory = field(default_factory=DiskHistory)

    @property
    def free_bytes(self) -> float:
        return self.total_bytes - self.others_bytes - sum(self.saved.values())

    @property
    def saving(self) -> int | None:
        return next((step for step, size in self.saved.items() if size < self.one_bytes), None)

    def run(self) -> None:
        """Ten seconds: one step of training each, and what is saved and deleted in them."""
        self.look += 1
        if self.look % self.save_every == 0:
            self.saved[self.look] = 0.0
        if (step := self.saving) is not None:
            part = self.one_bytes / self.save_takes
            assert self.free_bytes >= part * 0.999, f"the disk was full in the save of step {step}"
            self.saved[step] = min(self.one_bytes, self.saved[step] + part * 1.001)
            if self.saving is None and self.trainer_deletes:
                for old in sorted(self.saved)[: -self.keep_last]:
                    if old not in self.pinned and not self._kept(old):
                        del self.saved[old]

    def _kept(self, step: int) -> bool:
        return bool(self.keep_every_saves and step % (self.keep_every_saves * self.save_every) == 0)

    def judge(self) -> tuple[tuple[Alarm, ...], tuple[Deletion, ...]]:
        items = tuple(
            StoredItem(
                "checkpoint",
                step,
                (Path(f"step_{step}"),),
                int(size),
                "complete" if step != self.saving else "unfinished",
                NOW_S,
                "",
                step in self.pinned,
            )
            for step, size in sorted(self.saved.items())
        )
        space = Space("/data", 1, int(self.free_bytes), int(self.total_bytes), 10**6, 10**7)
        sample = DiskSample(self.look * INTERVAL_S, (space,), int(sum(self.saved.values())), items)
        following = (self.look // self.save_every + 1) * self.save_every
        every = self.keep_every_saves * self.save_every or None
        keep = Keep(keep_last=self.keep_last, keep_every_steps=every, saving_step=self.saving)
        doing = Doing("small", self.look, following, saving=self.saving is not None)
        verdict = judge(self.memory, sample, doing, keep, self.limits, NOW_S + self.look * INTERVAL_S)
        self.memory = verdict.memory
        if self.we_delete:
            for one in verdict.deletions:
                del self.saved[one.item.step]
        return verdict.alarms, verdict.deletions


def names(alarms: Iterable[Alarm]) -> list[str]:
    return [alarm.name for alarm in alarms]


# --- no false alarm --------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "looks"), [(0, 1080), *(pytest.param(seed, 8640) for seed in range(1, 4))])
def test_a_healthy_day_is_silent(seed: int, looks: int) -> None:
    """Checkpoints come and go, logs grow, others copy and delete; the least free space is 100 GB."""
    chance = random.Random(seed)
    disk = Disk(save_every=chance.choice([6, 60, 360]), one_bytes=chance.choice([5, 40, 100]) * GB)
    disk.others_bytes = disk.total_bytes - 100 * GB - 4 * disk.one_bytes
    files: list[tuple[int, float]] = []
    for look in range(looks):
        disk.run()
        disk.others_bytes += chance.random() * 2e6  # logs: 8 GB in the day
        if look % 90 == 45:  # somebody's files, a few at a time, which go again
            files.append((look + chance.randrange(30, 300), chance.random() * 5 * GB))
            disk.others_bytes += files[-1][1]
        for file in [file for file in files if file[0] == look]:
            disk.others_bytes -= file[1]
        alarms, _ = disk.judge()
        assert alarms == (), f"look {look}: {alarms}"


def test_one_large_copy_is_no_filling_disk() -> None:
    disk = Disk(one_bytes=1 * GB)
    for look in range(720):
        disk.run()
        if 300 <= look < 303:
            disk.others_bytes += 300 * GB
        assert disk.judge()[0] == ()


# --- a disk that fills -----------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [0.9, 2.0, 5.0])
def test_a_disk_that_others_fill_is_reported_an_hour_before(hours: float) -> None:
    disk = Disk(one_bytes=1 * GB)
    rate = disk.total_bytes / (hours * 3600)
    first = None
    while disk.free_bytes > rate * 120:
        disk.run()
        disk.others_bytes += rate * INTERVAL_S
        alarms, _ = disk.judge()
        if alarms and first is None:
            first = alarms[0]
            left_s = disk.free_bytes / rate
            assert names(alarms) == ["disk_filling"]
            assert left_s > 30 * 60
            assert first.answer == "alert"
    assert first is not None
    assert first.what.startswith("/data is full in ")
    assert names(alarms) == ["disk_filling"]
    assert alarms[0].answer == "pause"  # minutes are left, and the save still fits


def test_a_disk_that_fills_in_minutes_is_reported_within_a_minute() -> None:
    disk = Disk(one_bytes=1 * GB)
    for _ in range(60):
        disk.run()
        assert disk.judge()[0] == ()
    told = []
    for _ in range(7):
        disk.run()
        disk.others_bytes += disk.total_bytes / 600 * INTERVAL_S
        told.append(names(disk.judge()[0]))
    assert told[:3] == [[], [], []]  # one copy of a file is no trend
    assert told[-1] == ["disk_filling"]


def test_the_forecast_is_calm_at_its_limit() -> None:
    """At a rate that is an hour from full, give or take, it is told once and not at every second look."""
    chance = random.Random(1)
    disk = Disk(one_bytes=1 * GB, others_bytes=600 * GB)
    edges, before = 0, False
    for _ in range(900):
        disk.run()
        disk.others_bytes += 100e6 * INTERVAL_S * chance.uniform(0.5, 1.5)
        disk.others_bytes = min(disk.others_bytes, 640 * GB) if disk.others_bytes < 640 * GB else 640 * GB - 50 * GB
        now = bool(disk.judge()[0])
        edges, before = edges + (now and not before), now
    assert edges <= 6


def test_checkpoints_that_stay_are_reported_before_they_fill_the_disk() -> None:
    disk = Disk(total_bytes=300 * GB, trainer_deletes=False, save_every=60)
    told: list[tuple[str, str, float]] = []
    while not any(answer == "pause" for _, answer, _ in told):
        disk.run()  # fails where a save does not fit
        told += [(alarm.name, alarm.answer, disk.free_bytes) for alarm in disk.judge()[0]]
    [paused] = [one for one in told if one[1] == "pause"]
    assert told[0][1] == "alert"
    assert told[0][2] > 2 * disk.one_bytes
    assert paused[0] in ("disk_last_room", "disk_filling")
    assert paused[2] >= disk.one_bytes  # the save of the pause fits


@pytest.mark.parametrize("keep_every_saves", [1, 2, 3])
def test_the_pause_comes_while_its_save_fits(keep_every_saves: int) -> None:
    """What may never go fills the disk, whatever we delete: the run is paused right before the last save that fits."""
    disk = Disk(total_bytes=210 * GB, keep_every_saves=keep_every_saves, we_delete=True)
    disk.limits = DiskLimits(max_used_ratio=1.0)
    while True:
        disk.run()
        alarms, _ = disk.judge()
        if any(alarm.answer == "pause" for alarm in alarms):
            break
    assert disk.saving is None
    assert disk.one_bytes <= disk.free_bytes < 3 * disk.one_bytes
    [alarm] = [alarm for alarm in alarms if alarm.answer == "pause"]
    assert alarm.name in ("disk_last_room", "disk_filling")
    assert alarm.cause_class == "disk"


def test_a_disk_filled_at_a_stroke_leaves_no_room_for_the_pause_to_save() -> None:
    disk = Disk(others_bytes=900 * GB)
    for _ in range(130):
        disk.run()
        assert disk.judge()[0] == ()
    disk.others_bytes = disk.total_bytes - sum(disk.saved.values()) - 5 * GB
    answers = []
    while (disk.look + 1) % disk.save_every:
        disk.look += 1
        [alarm] = disk.judge()[0]
        assert (alarm.name, alarm.savable) == ("disk_no_room", False)
        answers.append(alarm.answer)
    assert answers[0] == "alert"  # somebody may make room before the save is due
    assert answers[-1] == "pause"
    assert answers == sorted(answers)


def test_alert_alone_never_pauses() -> None:
    disk = Disk(others_bytes=900 * GB, limits=DiskLimits(delete=False, max_used_ratio=1.0, may_pause=False))
    for _ in range(130):
        disk.run()
    disk.others_bytes = disk.total_bytes - sum(disk.saved.values())
    for _ in range(40):
        disk.look += 1
        alarms, _ = disk.judge()
        assert {alarm.answer for alarm in alarms} == {"alert"}


# --- deletions -------------------------------------------------------------------------------------


def test_a_run_whose_trainer_deletes_nothing_goes_on_for_ever() -> None:
    """Three checkpoints of 47 GB and no fourth: what is superseded goes before the next save needs the room."""
    disk = Disk(total_bytes=180 * GB, one_bytes=47 * GB, trainer_deletes=False, we_delete=True, keep_last=3)
    disk.limits = DiskLimits(max_used_ratio=0.95)
    for _ in range(3000):
        disk.run()
        alarms, _ = disk.judge()
        assert alarms == ()
    assert len(disk.saved) >= 2


def test_no_more_goes_than_the_next_save_needs() -> None:
    disk = Disk(total_bytes=200 * GB, keep_last=3, limits=DiskLimits(max_used_ratio=1.0))
    for _ in range(250):
        disk.run()
    disk.others_bytes = disk.free_bytes - 25 * GB
    assert disk.judge()[1] == ()
    disk.others_bytes += 10 * GB
    alarms, [one] = disk.judge()
    assert (one.item.step, one.last_resort, alarms) == (120, True, ())


def test_the_last_but_one_stays_where_even_that_makes_no_room() -> None:
    disk = Disk(total_bytes=200 * GB, keep_last=2, limits=DiskLimits(max_used_ratio=1.0))
    for _ in range(190):
        disk.run()
    disk.others_bytes = disk.total_bytes - 2 * disk.one_bytes - 1 * GB
    assert [one.item.step for one in disk.judge()[1]] == [120]  # with it the next one fits
    disk.saved = {step: size for step, size in disk.saved.items() if step == 180} | {120: 2 * GB}
    disk.others_bytes = disk.total_bytes - sum(disk.saved.values()) - GB
    alarms, deletions = disk.judge()
    assert (names(alarms), deletions) == (["disk_no_room"], ())


def test_the_budget_and_the_ratio() -> None:
    disk = Disk(total_bytes=200 * GB, keep_last=3, limits=DiskLimits(max_disk_gb=65, max_used_ratio=1.0))
    for _ in range(250):
        disk.run()
    alarms, deletions = disk.judge()
    assert [one.item.step for one in deletions] == [120]  # 60 GB and the next 20 are more than 65
    disk.limits = DiskLimits(max_disk_gb=15, max_used_ratio=1.0)
    alarms, deletions = disk.judge()
    assert [one.item.step for one in deletions] == [120, 180]
    assert names(alarms) == ["disk_budget"]
    disk.limits = DiskLimits(max_used_ratio=0.25)
    disk.memory = DiskHistory()
    alarms, deletions = disk.judge()
    assert (names(alarms), deletions) == (["disk_ratio"], ())  # what keep_last keeps, a ratio alone does not delete
    assert alarms[0].answer == "note"


# --- other troubles --------------------------------------------------------------------------------


def seen(**changed: object) -> DiskSample:
    space = Space("/data", 1, 500 * GB, 1000 * GB, 10**6, 10**7)
    return replace(DiskSample(10.0, (space,), 0, ()), **changed)  # type: ignore[arg-type]


def test_a_quota_is_reported() -> None:
    refusal = Refusal("/data", errno.EDQUOT, "Disk quota exceeded")
    verdict = judge(DiskHistory(), seen(refusals=(refusal,)), Doing("small"), Keep(), DiskLimits(), NOW_S)
    [alarm] = verdict.alarms
    assert (alarm.name, alarm.cause_class, alarm.where) == ("disk_refuses", "disk", "/data")
    assert not alarm.savable
    assert "Disk quota exceeded" in alarm.what
    blind = judge(DiskHistory(), seen(spaces=(), refusals=(refusal,)), Doing("small"), Keep(), DiskLimits(), NOW_S)
    assert names(blind.alarms) == ["disk_refuses"]


def test_few_inodes_are_reported_and_none_counted_are_not() -> None:
    few = Space("/data", 1, 500 * GB, 1000 * GB, 999, 10**7)
    assert names(judge(DiskHistory(), seen(spaces=(few,)), Doing("small"), Keep(), DiskLimits(), NOW_S).alarms) == [
        "disk_inodes"
    ]
    uncounted = replace(few, free_inodes=0, total_inodes=0)
    assert judge(DiskHistory(), seen(spaces=(uncounted,)), Doing("small"), Keep(), DiskLimits(), NOW_S).alarms == ()


def test_a_second_file_system_is_forecast_too() -> None:
    memory = DiskHistory()
    for look in range(20):
        other = Space("/scratch", 2, int((100 - look) * GB), 1000 * GB, 10**6, 10**7)
        sample = seen(at_s=look * INTERVAL_S, spaces=(seen().spaces[0], other))
        verdict = judge(memory, sample, Doing("small"), Keep(), DiskLimits(), NOW_S)
        memory = verdict.memory
    [alarm] = verdict.alarms
    assert (alarm.name, alarm.subject, alarm.answer) == ("disk_filling", "/scratch", "alert")


def test_before_the_first_checkpoint_its_size_is_reckoned() -> None:
    tight = Space("/data", 1, 30 * GB, 1000 * GB, 10**6, 10**7)
    doing = Doing("small", 5, 100, first_save_bytes=40 * GB)
    limits = DiskLimits(max_used_ratio=1.0)
    assert names(judge(DiskHistory(), seen(spaces=(tight,)), doing, Keep(), limits, NOW_S).alarms) == ["disk_no_room"]
    unknown = replace(doing, first_save_bytes=None)
    assert judge(DiskHistory(), seen(spaces=(tight,)), unknown, Keep(), limits, NOW_S).alarms == ()
    loading = replace(doing, is_running=False)
    assert judge(DiskHistory(), seen(spaces=(tight,)), loading, Keep(), limits, NOW_S).alarms == ()


def test_a_sample_survives_the_way_out_of_the_child() -> None:
    item = StoredItem("checkpoint", 5, (Path("a"), Path("b")), 10, "broken", 1.5, "short", True, "process 1 on here")
    sample = seen(items=(item,), refusals=(Refusal("/data", 28, "full"),))
    assert load(DiskSample, json.loads(dump(sample))) == sample


@pytest.mark.parametrize("change", [{"at_s": "now"}, {"items": None}, {"spaces": [5]}, {"own_bytes": 1.5}])
def test_another_line_than_a_sample_is_a_value_error(change: dict[str, object]) -> None:
    plain = json.loads(
        dump(DiskSample(1.0, (), 5, (StoredItem("checkpoint", 1, (Path("step_1"),), 5, "complete", 1.0),)))
    )
    assert load(DiskSample, plain).items[0].paths == (Path("step_1"),)
    with pytest.raises(ValueError, match=r"\$"):
        load(DiskSample, plain | change)
    plain["items"][0]["paths"] = [5]
    with pytest.raises(ValueError, match=r"\$\.items\[0\]\.paths\[0\]: 5 is not of the type Path"):
        load(DiskSample, plain)
    with pytest.raises(ValueError, match="Expecting"):
        load(DiskSample, json.dumps(plain)[:-1])


def test_a_trend_forgets_what_is_an_hour_old() -> None:
    trend = Trend()
    for look in range(3000):
        trend = trend.add(UsedPoint(look * INTERVAL_S, min(look, 1000) * GB))
    assert (trend.fast_bytes_per_s, trend.slow_bytes_per_s) == (0.0, 0.0)
    assert len(trend.slow) == 60


def test_a_sample_has_file_names_that_are_no_text_and_no_other_values(tmp_path: Path) -> None:
    name = Path(os.fsdecode(b"step_\xff"))
    sample = DiskSample(1.0, (), 5, (StoredItem("checkpoint", 1, (tmp_path / name,), 5, "complete", 1.0),))
    assert load(DiskSample, dump(sample)) == sample
    with pytest.raises(TypeError):
        dump({"path": object()})
