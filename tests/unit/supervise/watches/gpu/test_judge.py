"""The judgement over samples: values in, alarms out. No driver, no child, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.registry.gpus import xids
from prime_train.supervise.watches.gpu.history import GpuHistory, GpuLimits, Scene
from prime_train.supervise.watches.gpu.judge import judge
from prime_train.supervise.watches.gpu.samples import (
    DriverRefusal,
    GpuProcess,
    GpuReading,
    GpuSample,
    Message,
    NoDriver,
    Xid,
)
from prime_train.supervise.watches.watch import Alarm

GIB = 2**30
INTERVAL_S = 10.0
TRAINER, SERVER, STRANGER = 100, 200, 900
ROLES = {TRAINER: "trainer", SERVER: "inference"}


def use(pid: int, used_bytes: int | None, *, here: bool = True, marked: bool = False) -> GpuProcess:
    """A worker of `pid`, or a process of a number that is not one of this machine."""
    return GpuProcess(pid + 1, used_bytes, (pid, 50, 1) if here else None, marked)


def gpu(index: int, **said: object) -> GpuSample:
    well: dict[str, object] = {
        "index": index,
        "uuid": f"GPU-{index}",
        "pci": f"0000:{0x3B + index:02x}:00",
        "used_bytes": 40 * GIB,
        "uses": (use(TRAINER, 40 * GIB),),
        "utilisation_percent": 97,
        "slow_reasons": 0x4,
        "uncorrected_errors": 0,
        "remap_pending": False,
        "remap_failed": False,
        "recovery": 0,
    }
    return GpuSample(**(well | said))  # type: ignore[arg-type]


class Run:
    """A run that is looked at once per interval. Each look returns what stands, by name and subject."""

    def __init__(self, limits: GpuLimits | None = None, attempt: int = 1) -> None:
        self.limits = limits or GpuLimits()
        self.memory = GpuHistory()
        self.scene = Scene(0.0, attempt=attempt, roles=ROLES, steady=frozenset({"trainer"}))
        self.alarms: tuple[Alarm, ...] = ()

    def look(self, *said: Message, pass_s: float = INTERVAL_S, **scene: Any) -> dict[tuple[str, str], Alarm]:
        self.scene = replace(self.scene, now_s=self.scene.now_s + pass_s, **scene)
        self.memory, self.alarms = judge(self.memory, said, self.scene, self.limits)
        return {(alarm.name, alarm.subject): alarm for alarm in self.alarms}

    def read(self, *gpus: GpuSample, **scene: Any) -> dict[tuple[str, str], Alarm]:
        return self.look(GpuReading(self.scene.now_s + INTERVAL_S, gpus), **scene)

    def xid(self, code: int, index: int = 1, text: str = "", **scene: Any) -> dict[tuple[str, str], Alarm]:
        said = Xid(self.scene.now_s, code, pci=f"0000:{0x3B + index:02x}:00", text=text)
        return self.look(said, pass_s=1.0, **scene)


def healthy(count: int = 2) -> tuple[GpuSample, ...]:
    return tuple(gpu(index) for index in range(count))


def answers(found: Mapping[tuple[str, str], Alarm]) -> dict[tuple[str, str], str]:
    return {key: alarm.answer for key, alarm in found.items()}


# --- one sample is enough ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "name", "answer"),
    [
        ({"fault": "lost"}, "gpu_lost", "restart"),
        ({"fault": "reset required"}, "gpu_reset_required", "restart"),
        ({"fault": "Unknown Error"}, "gpu_fault", "alert"),
        ({"recovery": 1}, "gpu_recovery", "restart"),
        ({"recovery": 2}, "gpu_recovery", "restart"),
        ({"recovery": 4}, "gpu_recovery", "alert"),
        ({"recovery": 99}, "gpu_recovery", "alert"),
        ({"uncorrected_errors": 1}, "gpu_ecc", "restart"),
        ({"remap_pending": True}, "gpu_remap_pending", "alert"),
        ({"remap_failed": True, "remap_pending": True}, "gpu_remap_failed", "restart"),
    ],
)
def test_a_fault_is_named_in_the_sample_that_shows_it(said: dict[str, object], name: str, answer: str) -> None:
    run = Run()
    assert run.read(*healthy()) == {}
    found = run.read(gpu(0), gpu(1, **said))
    assert answers(found) == {(name, "GPU 1"): answer}
    alarm = found[name, "GPU 1"]
    assert alarm.where == "GPU-1"
    assert alarm.what.startswith("GPU 1 ")
    assert "INDEX" not in alarm.fix
    assert run.read(*healthy()) == {}


def test_a_lost_gpu_without_a_name_is_the_one_that_had_its_number() -> None:
    run = Run()
    run.read(*healthy())
    found = run.read(gpu(0), GpuSample(1, "", fault="lost"))
    assert found["gpu_lost", "GPU 1"].where == "GPU-1"


def test_a_gpu_that_is_listed_no_more_is_lost_and_the_others_keep_their_numbers() -> None:
    run = Run()
    run.read(*healthy(3))
    found = run.read(gpu(0), replace(gpu(2), index=1))
    assert answers(found) == {("gpu_lost", "GPU 1"): "restart"}
    found = run.read(gpu(0), replace(gpu(2, fault="reset required"), index=1))
    assert set(found) == {("gpu_lost", "GPU 1"), ("gpu_reset_required", "GPU 2")}


def test_errors_counted_before_the_attempt_are_not_its() -> None:
    run = Run()
    assert run.read(gpu(0, uncorrected_errors=7, remap_failed=True))["gpu_remap_failed", "GPU 0"].answer == "alert"
    found = run.read(gpu(0, uncorrected_errors=9))
    assert "2 uncorrectable memory errors" in found["gpu_ecc", "GPU 0"].what
    assert run.read(gpu(0, uncorrected_errors=9), attempt=2) == {}


def test_a_driver_that_was_loaded_again_counts_from_zero() -> None:
    run = Run()
    run.read(gpu(0, uncorrected_errors=7))
    assert run.read(gpu(0, uncorrected_errors=0)) == {}
    assert ("gpu_ecc", "GPU 0") in run.read(gpu(0, uncorrected_errors=1))


def test_what_the_driver_does_not_report_is_no_fault() -> None:
    run = Run()
    bare = GpuSample(0, "GPU-0")
    for _ in range(20):
        assert run.read(bare) == {}


# --- XIDs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", xids().values(), ids=lambda entry: str(entry.code))
def test_an_xid_is_answered_as_the_table_states(entry: object) -> None:
    code = entry.code  # type: ignore[attr-defined]
    run = Run()
    run.read(*healthy())
    found = run.xid(code, text=f"NVRM: Xid (PCI:0000:3c:00): {code}, X, Fatal, pid=1")
    assert answers(found) == {(f"gpu_xid_{code}", "GPU 1"): entry.answer}  # type: ignore[attr-defined]
    assert found[f"gpu_xid_{code}", "GPU 1"].where == "GPU-1"


def test_an_xid_stands_for_its_attempt_and_not_for_the_next() -> None:
    run = Run()
    run.read(*healthy())
    run.xid(79)
    assert ("gpu_xid_79", "GPU 1") in run.read(*healthy())
    assert ("gpu_xid_79", "GPU 1") in run.read(*healthy(), attempt=0)
    assert run.read(*healthy(), attempt=2) == {}


def test_an_xid_that_is_heard_after_its_attempt_has_died_is_reported_and_spares_the_next() -> None:
    run = Run()
    run.read(*healthy())
    assert answers(run.xid(79, attempt=0)) == {("gpu_xid_79", "GPU 1"): "restart"}
    assert run.read(*healthy(), attempt=2) == {}
    run = Run()
    run.read(*healthy())
    assert run.xid(79, attempt=2) == {}


def test_an_xid_reported_twice_is_one_with_the_words_of_the_log() -> None:
    run = Run()
    run.read(*healthy())
    run.look(Xid(1.0, 94, uuid="GPU-1"))
    found = run.xid(94, text="Contained: SM")
    assert len(found) == 1
    assert "Contained: SM" in found["gpu_xid_94", "GPU 1"].what


def test_an_xid_reported_before_the_gpus_finds_its_gpu() -> None:
    run = Run()
    run.look()
    assert answers(run.xid(79)) == {("gpu_xid_79", "GPU at 0000:3c:00"): "note"}
    assert answers(run.read(*healthy())) == {("gpu_xid_79", "GPU 1"): "restart"}


def test_an_xid_of_an_unknown_gpu_is_a_note() -> None:
    run = Run()
    run.read(*healthy())
    assert answers(run.xid(79, index=9)) == {("gpu_xid_79", "GPU at 0000:44:00"): "note"}


@pytest.mark.parametrize(("text", "answer"), [("", "alert"), ("x, Nonfatal, y", "note"), ("x, Fatal, y", "restart")])
def test_an_nvlink_error_ends_an_attempt_only_where_the_line_calls_it_fatal(text: str, answer: str) -> None:
    run = Run()
    run.read(*healthy())
    assert run.xid(149, text=text)["gpu_xid_149", "GPU 1"].answer == answer


def test_a_page_fault_is_tried_again_once_and_then_reported_by_where_it_came_back() -> None:
    def classes(*where: tuple[int, int]) -> list[str]:
        run = Run(GpuLimits(visible="0,1"))
        run.read(*healthy(3))
        run.xid(31, 2)  # met by somebody else's program
        met = []
        for attempt, index in where:
            run.read(*healthy(3), attempt=attempt)
            met.append(run.xid(31, index)["gpu_xid_31", f"GPU {index}"].cause_class)
        return met

    assert classes((1, 0), (2, 0), (3, 0)) == ["unknown", "hardware", "hardware"]
    assert classes((1, 0), (2, 1)) == ["unknown", "bug"]
    assert classes((1, 0), (1, 1), (2, 0)) == ["unknown", "unknown", "bug"]


def test_a_page_fault_heard_after_its_attempt_has_died_counts_as_of_that_attempt() -> None:
    run = Run()
    run.read(*healthy())
    assert run.xid(31, 0, attempt=0)["gpu_xid_31", "GPU 0"].cause_class == "unknown"
    run.read(*healthy(), attempt=2)
    assert run.xid(31, 1, attempt=0)["gpu_xid_31", "GPU 1"].cause_class == "bug"


# --- which GPUs count --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("visible", "answer"),
    [(None, "restart"), ("1", "restart"), ("0", "note"), ("GPU-1", "restart"), ("", "note"), ("MIG-ab", "restart")],
)
def test_only_gpus_of_the_run_end_an_attempt(visible: str | None, answer: str) -> None:
    run = Run(GpuLimits(visible=visible))
    run.read(*healthy())
    assert run.read(gpu(0), gpu(1, fault="lost"))["gpu_lost", "GPU 1"].answer == answer
    assert run.xid(79)["gpu_xid_79", "GPU 1"].answer == answer


def test_a_watch_that_may_only_report_ends_nothing() -> None:
    run = Run(GpuLimits(answer="alert"))
    run.read(*healthy())
    run.xid(79)
    found = run.read(gpu(0, uncorrected_errors=1), gpu(1, fault="lost"))
    assert len(found) == 3
    assert set(answers(found).values()) == {"alert"}


# --- what must last ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("reasons", "name", "answer"), [
    (0x8, "gpu_throttled", "alert"), (0x40, "gpu_throttled", "alert"), (0x84, "gpu_throttled", "alert"),
    (0x20, "gpu_warm", "note"),
])  # fmt: skip
def test_a_gpu_that_is_held_back_for_a_minute(reasons: int, name: str, answer: str) -> None:
    run = Run()
    for _ in range(6):
        assert run.read(gpu(0, slow_reasons=reasons)) == {}
    assert answers(run.read(gpu(0, slow_reasons=reasons))) == {(name, "GPU 0"): answer}
    assert run.read(gpu(0, slow_reasons=0)) == {}
    assert run.read(gpu(0, slow_reasons=reasons)) == {}


@pytest.mark.parametrize("reasons", [0x0, 0x1, 0x2, 0x4, 0x10, 0x100, 0x200, None])
def test_usual_reasons_are_none(reasons: int | None) -> None:
    run = Run()
    for _ in range(30):
        assert run.read(gpu(0, slow_reasons=reasons)) == {}


def test_a_stranger_on_a_gpu_of_the_run_is_reported() -> None:
    run = Run(GpuLimits(visible="0"))
    shared = (use(TRAINER, GIB), use(STRANGER, 3 * GIB))
    assert run.read(gpu(0, uses=shared), gpu(1, uses=shared)) == {}
    found = run.read(gpu(0, uses=shared), gpu(1, uses=shared))
    assert answers(found) == {("gpu_shared", "GPU 0"): "alert"}
    assert f"process {STRANGER + 1} (3.0 GiB)" in found["gpu_shared", "GPU 0"].what
    assert run.read(*healthy()) == {}


def test_numbers_of_another_namespace_are_no_strangers() -> None:
    run = Run()
    host = (use(STRANGER, 3 * GIB), use(54321, GIB, here=False))
    for _ in range(20):
        assert run.read(gpu(0, uses=host)) == {}


# --- alive but broken --------------------------------------------------------------------------------

BOTH = frozenset({"trainer", "inference"})
SERVED = gpu(1, uses=(use(SERVER, 40 * GIB),))
EMPTY = gpu(1, uses=(), used_bytes=0)


def test_a_server_that_lost_its_memory_is_found_while_the_trainer_goes_on() -> None:
    run = Run()
    run.read(gpu(0), SERVED, steady=BOTH)
    assert run.read(gpu(0), EMPTY) == {}
    assert run.read(gpu(0), EMPTY) == {}
    found = run.read(gpu(0), EMPTY)
    assert answers(found) == {("gpu_memory_gone", "GPU 1"): "restart"}
    assert found["gpu_memory_gone", "GPU 1"].cause_class == "hang"
    assert "inference" in found["gpu_memory_gone", "GPU 1"].what
    assert run.read(gpu(0), SERVED) == {}


def test_an_orphan_of_the_run_is_no_stranger() -> None:
    run = Run()
    for _ in range(10):
        assert run.read(gpu(0), gpu(1, uses=(use(STRANGER, GIB, marked=True),))) == {}


def test_a_server_is_found_dead_while_the_trainer_saves_a_checkpoint() -> None:
    run = Run()
    run.read(gpu(0), SERVED, steady=BOTH)
    for _ in range(2):
        assert run.read(gpu(0), EMPTY, steady=frozenset({"inference"}), moving=True) == {}
    found = run.read(gpu(0), EMPTY, steady=frozenset({"inference"}), moving=True)
    assert ("gpu_memory_gone", "GPU 1") in found


def test_a_start_may_take_and_give_memory() -> None:
    run = Run()
    run.read(gpu(0), SERVED, steady=frozenset({"trainer"}))
    for _ in range(3):
        assert run.read(gpu(0), EMPTY) == {}
    for _ in range(10):
        assert run.read(gpu(0), EMPTY, steady=BOTH) == {}


def test_one_rank_of_many_that_lost_its_memory_is_found() -> None:
    run = Run()
    run.read(*healthy(4))
    for _ in range(2):
        assert run.read(gpu(0), gpu(1), gpu(2), gpu(3, uses=())) == {}
    assert set(run.read(gpu(0), gpu(1), gpu(2), gpu(3, uses=()))) == {("gpu_memory_gone", "GPU 3")}


def test_a_role_that_ended_is_reported_by_the_loop() -> None:
    run = Run()
    run.read(gpu(0), SERVED, steady=BOTH)
    for _ in range(10):
        assert run.read(gpu(0), EMPTY, steady=frozenset({"trainer"})) == {}


@pytest.mark.parametrize("scene", [{"moving": True, "steady": frozenset()}, {"steady": frozenset()}])
def test_a_phase_that_gives_memory_back_is_excused(scene: dict[str, object]) -> None:
    for host in (False, True):
        run = Run()
        uses = (use(54321, GIB, here=False),) if host else (use(TRAINER, GIB),)
        run.read(gpu(0, uses=uses))
        for _ in range(10):
            assert run.read(gpu(0, uses=(), used_bytes=0), **scene) == {}


def test_in_another_namespace_memory_alone_gives() -> None:
    run = Run()
    run.read(gpu(0, uses=()), gpu(1, uses=()))
    left = gpu(1, uses=(), used_bytes=400 * 2**20)  # what the driver and others still have there
    for _ in range(2):
        assert run.read(gpu(0, uses=()), left) == {}
    assert answers(run.read(gpu(0, uses=()), left)) == {("gpu_memory_gone", "GPU 1"): "restart"}


def test_a_gpu_that_the_run_never_took_memory_on_is_not_missed() -> None:
    run = Run()
    for _ in range(20):
        assert run.read(gpu(0, uses=(), used_bytes=3 * 2**20)) == {}


def test_a_trainer_on_the_cpu_beside_a_gpu_is_well() -> None:
    run = Run()
    for _ in range(20):
        assert run.read(EMPTY) == {}


# --- the driver --------------------------------------------------------------------------------------


def test_a_driver_that_is_silent_is_reported_after_three_intervals_and_a_bit() -> None:
    run = Run()
    run.read(*healthy())
    found: dict[tuple[str, str], Alarm] = {}
    for second in range(1, 60):
        found = run.look(pass_s=1.0)
        assert bool(found) == (second > 35)
    assert answers(found) == {("gpu_driver_silent", "NVIDIA driver"): "alert"}
    assert run.read(*healthy()) == {}


def test_a_supervisor_that_was_stopped_blames_no_process() -> None:
    run = Run()
    run.read(*healthy())
    assert run.look(pass_s=3600.0) == {}
    assert run.look(pass_s=1.0) == {}


def test_an_error_in_the_log_does_not_hide_that_the_driver_is_silent() -> None:
    run = Run()
    run.read(*healthy())
    for _ in range(40):
        run.look(pass_s=1.0)
    assert set(run.xid(119)) == {("gpu_driver_silent", "NVIDIA driver"), ("gpu_xid_119", "GPU 1")}


def test_a_driver_that_goes_in_mid_run_is_no_machine_without_one() -> None:
    run = Run()
    run.read(*healthy())
    assert answers(run.look(NoDriver("Driver Not Loaded"))) == {("gpu_driver_refuses", "NVIDIA driver"): "alert"}
    for _ in range(100):
        assert set(run.look()) == {("gpu_driver_refuses", "NVIDIA driver")}
    assert run.read(*healthy()) == {}


def test_no_driver_is_a_note_and_refusal_an_alert() -> None:
    run = Run()
    found = run.look(NoDriver("no library"))
    assert answers(found) == {("gpu_no_driver", ""): "note"}
    for _ in range(100):
        assert set(run.look()) == {("gpu_no_driver", "")}
    assert answers(Run().look(DriverRefusal("Driver/library version mismatch"))) == {
        ("gpu_driver_refuses", "NVIDIA driver"): "alert"
    }


# --- histories ---------------------------------------------------------------------------------------

SAMPLES = st.builds(
    gpu,
    st.integers(0, 2),
    fault=st.sampled_from(["", "", "", "lost", "reset required", "odd"]),
    used_bytes=st.sampled_from([None, 0, GIB]),
    uses=st.sampled_from([None, (), (use(TRAINER, None),), (use(STRANGER, GIB),), (use(54321, 1, here=False),)]),
    slow_reasons=st.sampled_from([None, 0, 0x8, 0x20, 0x4]),
    uncorrected_errors=st.sampled_from([None, 0, 0, 1]),
    remap_failed=st.sampled_from([None, False, True]),
    recovery=st.sampled_from([None, 0, 1, 3]),
)
XIDS = st.builds(
    Xid,
    st.just(0.0),
    st.sampled_from([31, 45, 79, 149, 9999]),
    uuid=st.sampled_from(["", "GPU-1"]),
    pci=st.sampled_from(["", "0000:3c:00", "0000:99:00"]),
    text=st.sampled_from(["", "Fatal"]),
)
LOOKS = st.lists(
    st.tuples(
        st.lists(SAMPLES, max_size=3, unique_by=lambda sample: sample.index),
        st.lists(XIDS, max_size=2),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=25,
)


def history(
    looks: Sequence[tuple[list[GpuSample], list[Xid], int, bool]], limits: GpuLimits
) -> list[tuple[Alarm, ...]]:
    run = Run(limits)
    stood = []
    for gpus, told, attempt, settled in looks:
        said: list[Message] = [*told, GpuReading(run.scene.now_s, tuple(gpus))]
        run.look(*said, attempt=attempt, steady=BOTH if settled else frozenset())
        stood.append(run.alarms)
    return stood


@given(LOOKS)
def test_each_alarm_is_one_of_its_kind_and_states_all_four_parts(
    looks: list[tuple[list[GpuSample], list[Xid], int, bool]],
) -> None:
    for alarms in history(looks, GpuLimits()):
        assert len({alarm.key for alarm in alarms}) == len(alarms)
        for alarm in alarms:
            assert alarm.what
            assert alarm.why
            assert alarm.fix
            assert alarm.watch == "gpu"


@given(LOOKS)
def test_a_run_without_gpus_is_never_ended(looks: list[tuple[list[GpuSample], list[Xid], int, bool]]) -> None:
    for alarms in history(looks, GpuLimits(visible="")):
        assert not [alarm for alarm in alarms if alarm.answer == "restart"]


@given(LOOKS)
def test_a_gpu_that_is_lost_is_reported_in_every_look_that_shows_it(
    looks: list[tuple[list[GpuSample], list[Xid], int, bool]],
) -> None:
    for (gpus, _, _, _), alarms in zip(looks, history(looks, GpuLimits()), strict=True):
        lost = {f"GPU {sample.index}" for sample in gpus if sample.fault == "lost"}
        assert lost <= {alarm.subject for alarm in alarms if alarm.name == "gpu_lost"}


@given(LOOKS)
def test_a_new_attempt_starts_with_no_xid(looks: list[tuple[list[GpuSample], list[Xid], int, bool]]) -> None:
    run = Run()
    for gpus, told, attempt, _ in looks:
        run.look(*told, GpuReading(run.scene.now_s, tuple(gpus)), attempt=attempt)
    run.look(attempt=9)
    assert run.alarms == ()


def test_a_healthy_day_is_silent() -> None:
    """24 h of four GPUs: bursts of heat, evaluations that free memory, power caps, an error from before the run."""
    run = Run(GpuLimits())
    for sample in range(24 * 360):
        hot = sample % 50 < 5  # 50 s of every 500 s
        moving = sample % 200 < 12
        uses = () if moving else (use(TRAINER, 60 * GIB),)
        reasons = 0x48 if hot else 0x4 if sample % 3 else 0x1
        gpus = tuple(
            gpu(index, uses=uses, used_bytes=0 if moving else 60 * GIB, slow_reasons=reasons, uncorrected_errors=3)
            for index in range(4)
        )
        assert run.read(*gpus, moving=moving, steady=frozenset() if moving else BOTH) == {}
    assert len(run.memory.tracks) == 4
