from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.process_id import identify
from prime_train.core.rundir import RunDir
from prime_train.core.units import GIB
from prime_train.supervise.core.state import AttemptState, ChildProcess, Live, State
from prime_train.supervise.watches.host.host_program import (
    count_oom_kills,
    find_tightest,
    list_own_groups,
    measure_shared_memory,
)
from prime_train.supervise.watches.host.judge import (
    LEAST_POINTS,
    LIMITS,
    WARM_SAVES,
    HeldPoint,
    HostHistory,
    WatchedRun,
    judge,
    measure_growth,
    read_run,
)
from prime_train.supervise.watches.host.sample import HostSample, MemoryRoom, ProcessMemory
from prime_train.supervise.watches.host.watch import HostWatch
from prime_train.supervise.watches.watch import Alarm

MIB = 2**20
DEADLINE_S = 60.0
RUN = WatchedRun(1, {100: "trainer"}, step=50, max_steps=100_000)
PLENTY = MemoryRoom(100 * GIB, 256 * GIB)


def process(pid: int = 100, **changed: object) -> ProcessMemory:
    return replace(ProcessMemory(pid, 1, "python", "", 8 * GIB, 50, 1024), **changed)  # type: ignore[arg-type]


RANKS = (process(), process(101, parent=100, rank="0"), process(102, parent=100, rank="1", own_bytes=9 * GIB))


def sample(at_s: float = 0.0, **changed: object) -> HostSample:
    plain = HostSample(at_s, 1e9 + at_s, PLENTY, None, MemoryRoom(8 * GIB, 8 * GIB), {"/proc/vmstat": 3}, RANKS)
    return replace(plain, **changed)  # type: ignore[arg-type]


def alarms(*samples: HostSample, run: WatchedRun = RUN) -> tuple[Alarm, ...]:
    """What stands after these samples."""
    return judge(HostHistory(), samples, run)[1]


def names(found: Iterable[Alarm]) -> list[tuple[str, str, str]]:
    return [(alarm.name, alarm.subject, alarm.answer) for alarm in found]


def ten_seconds_apart(*changes: Mapping[str, object]) -> list[HostSample]:
    return [sample(10.0 * number, **changed) for number, changed in enumerate(changes)]


def test_a_machine_with_room_is_reported_in_no_way() -> None:
    assert alarms(*ten_seconds_apart({}, {}, {})) == ()


@pytest.mark.parametrize(
    ("changed", "name", "subject"),
    [
        ({"memory": MemoryRoom(3 * GIB, 256 * GIB)}, "memory_low", "this machine"),
        ({"group": MemoryRoom(GIB // 4, 16 * GIB)}, "memory_low", "the container"),
        ({"shared": MemoryRoom(MIB, 64 * MIB)}, "shared_memory_low", "/dev/shm"),
        ({"processes": (process(open_files=900),)}, "open_files", "trainer (100)"),
    ],
)
def test_what_runs_out_is_reported_from_the_second_sample_on(
    changed: dict[str, object], name: str, subject: str
) -> None:
    assert alarms(*ten_seconds_apart(changed)) == ()
    assert names(alarms(*ten_seconds_apart(changed, changed))) == [(name, subject, "alert")]
    assert alarms(*ten_seconds_apart(changed, {}, changed, {})) == ()


def test_what_stands_is_reported_until_it_is_clearly_better() -> None:
    low, hardly_better, better = ({"memory": MemoryRoom(bytes_, 256 * GIB)} for bytes_ in (3 * GIB, 5 * GIB, 7 * GIB))
    assert alarms(*ten_seconds_apart(hardly_better, hardly_better)) == ()
    assert len(alarms(*ten_seconds_apart(low, low, hardly_better))) == 1
    assert alarms(*ten_seconds_apart(low, low, hardly_better, better)) == ()


def test_the_largest_process_is_named_where_memory_runs_out() -> None:
    changed: dict[str, object] = {"memory": MemoryRoom(GIB, 256 * GIB)}
    (alarm,) = alarms(*ten_seconds_apart(changed, changed))
    assert "python (102) holds 9.0 GiB" in alarm.why
    assert alarm.what == "memory of this machine: 1.0 GiB of 256.0 GiB are left"


# --- killed for memory ------------------------------------------------------------------------------


def test_a_rank_that_was_killed_for_memory_is_named() -> None:
    (alarm,) = alarms(
        *ten_seconds_apart({}, {"oom_kills": {"/proc/vmstat": 4}, "processes": RANKS[:2], "killed": ((102, "python"),)})
    )
    assert names([alarm]) == [("oom_kill", "trainer rank 1", "alert")]
    assert alarm.what == "the kernel killed trainer rank 1 (pid 102) because memory ran out"
    assert alarm.cause_class == "oom"


def test_a_long_name_is_known_by_what_the_kernel_keeps_of_it() -> None:
    engine = process(103, parent=100, name="VLLM::EngineCore")
    killed = {"oom_kills": {"/proc/vmstat": 4}, "processes": RANKS, "killed": ((103, "VLLM::EngineCor"),)}
    (alarm,) = alarms(*ten_seconds_apart({"processes": (*RANKS, engine)}, killed))
    assert alarm.what == "the kernel killed trainer (pid 103) because memory ran out"


def test_without_the_kernels_log_the_largest_that_is_gone_is_named_as_such() -> None:
    counters = {"/proc/vmstat": 4, "/sys/fs/cgroup/memory.events": 1}
    before: dict[str, object] = {"oom_kills": {"/proc/vmstat": 3, "/sys/fs/cgroup/memory.events": 0}}
    (alarm,) = alarms(*ten_seconds_apart(before, {"oom_kills": counters, "processes": ()}))
    assert names([alarm]) == [("oom_kill", "trainer rank 1", "alert")]
    assert "trainer rank 1 is the largest one missing from the run" in alarm.what
    assert "its container" in alarm.why
    assert alarm.where == "/sys/fs/cgroup/memory.events"


@pytest.mark.parametrize("log", [(), ((102, "python"),)], ids=["no log", "kernel's log"])
def test_a_kill_that_is_counted_before_its_process_has_ended_is_of_the_run(log: tuple[tuple[int, str], ...]) -> None:
    counted: dict[str, object] = {"oom_kills": {"/proc/vmstat": 4}}
    ended = counted | {"processes": RANKS[:2], "killed": log}
    assert alarms(*ten_seconds_apart({}, counted)) == ()
    assert names(alarms(*ten_seconds_apart({}, counted, ended))) == [("oom_kill", "trainer rank 1", "alert")]


def test_a_process_that_the_kernel_names_is_of_the_run_before_it_has_ended() -> None:
    (alarm,) = alarms(*ten_seconds_apart({}, {"oom_kills": {"/proc/vmstat": 4}, "killed": ((102, "python"),)}))
    assert names([alarm]) == [("oom_kill", "trainer rank 1", "alert")]


def test_a_kill_that_ended_no_process_of_the_run_by_the_next_sample_is_anothers() -> None:
    counted: dict[str, object] = {"oom_kills": {"/proc/vmstat": 4}}
    assert names(alarms(*ten_seconds_apart({}, counted, counted))) == [("oom_kill", "another program", "note")]


def test_a_kill_of_another_program_is_a_note() -> None:
    (alarm,) = alarms(*ten_seconds_apart({}, {"oom_kills": {"/proc/vmstat": 4}, "killed": ((7, "chrome"),)}))
    assert names([alarm]) == [("oom_kill", "another program", "note")]
    assert "chrome" in alarm.what


def test_where_the_own_group_lost_no_process_the_kill_was_of_another() -> None:
    group = "/sys/fs/cgroup/memory.events"
    before: dict[str, object] = {"oom_kills": {"/proc/vmstat": 3, group: 2}}
    after: dict[str, object] = {"oom_kills": {"/proc/vmstat": 4, group: 2}, "processes": ()}
    assert names(alarms(*ten_seconds_apart(before, after, after))) == [("oom_kill", "another program", "note")]


def test_a_kill_whose_process_has_ended_before_the_kernel_names_it_is_of_the_run() -> None:
    group = "/sys/fs/cgroup/memory.events"
    before: dict[str, object] = {"oom_kills": {"/proc/vmstat": 3, group: 2}}
    ended: dict[str, object] = {"oom_kills": {"/proc/vmstat": 4, group: 2}, "processes": RANKS[:2]}
    (alarm,) = alarms(*ten_seconds_apart(before, ended, ended | {"killed": ((102, "python"),)}))
    assert alarm.what == "the kernel killed trainer rank 1 (pid 102) because memory ran out"
    assert alarm.answer == "alert"


def test_what_happened_is_reported_for_a_while_and_then_no_more() -> None:
    killed: dict[str, object] = {"oom_kills": {"/proc/vmstat": 4}, "killed": ((7, "chrome"),)}
    history = ten_seconds_apart({}, *[killed] * 20)
    standing = [len(judge(HostHistory(), history[: count + 1], RUN)[1]) for count in range(len(history))]
    assert standing[1] == 1
    assert standing[-1] == 0
    assert sum(standing) == LIMITS.stands_s / 10


def test_kills_before_the_watch_began_are_not_reported() -> None:
    assert alarms(sample(oom_kills={"/proc/vmstat": 70})) == ()


# --- the clock --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step_s", "name"), [(-3.0, "clock_back"), (7200.0, "clock_forward")])
def test_a_clock_that_was_set_is_reported_with_its_direction(step_s: float, name: str) -> None:
    jumped = replace(sample(10.0), wall_s=1e9 + 10.0 + step_s)
    assert names(alarms(sample(), jumped)) == [(name, "this machine", "note")]


def test_a_clock_that_drifts_is_not() -> None:
    assert alarms(sample(), replace(sample(10.0), wall_s=1e9 + 10.005)) == ()


# --- growth from save to save -----------------------------------------------------------------------


def saves(
    held: Callable[[int], int], count: int, *, free_bytes: int = 100 * GIB, max_steps: int = 10_000
) -> list[Alarm]:
    """What stands after so many saves, one every 100 steps, six samples between two of them."""
    memory, found = HostHistory(), ()  # type: HostHistory, tuple[Alarm, ...]
    for number in range(count):
        run = replace(RUN, step=100 * number, max_steps=max_steps, newest_complete=100 * number)
        for tick in range(6):
            at_s = 60.0 * number + 10.0 * tick
            peak = 3 * GIB if tick == 3 else 0  # an evaluation's, or the save's own
            processes = (process(own_bytes=held(number) + peak),)
            memory, found = judge(
                memory, [sample(at_s, processes=processes, memory=MemoryRoom(free_bytes, 256 * GIB))], run
            )
    return list(found)


def test_memory_that_grows_with_each_save_is_reported_with_the_saves_that_are_left() -> None:
    (alarm,) = saves(lambda number: 8 * GIB + number * GIB, 12, free_bytes=12 * GIB)
    assert names([alarm]) == [("memory_grows", "the run", "alert")]
    assert alarm.what == "the run holds 1.0 GiB more memory at each save"
    assert "last for about 12 more saves" in alarm.why


def test_growth_that_lasts_beyond_the_next_saves_is_a_note_first() -> None:
    (alarm,) = saves(lambda number: 8 * GIB + number * GIB, 12, free_bytes=60 * GIB)
    assert alarm.answer == "note"


def test_growth_for_which_there_is_room_until_the_end_is_not_reported() -> None:
    assert saves(lambda number: 8 * GIB + number * GIB, 12, max_steps=2000) == []


def test_memory_that_grows_in_the_first_saves_alone_is_not_reported() -> None:
    assert saves(lambda number: 8 * GIB + min(number, WARM_SAVES) * 10 * GIB, 20, free_bytes=12 * GIB) == []


def test_another_attempt_begins_again() -> None:
    memory = HostHistory(attempt=1, points=tuple(HeldPoint(100 * n, n * GIB) for n in range(20)), newest_complete=1900)
    resumed = replace(RUN, attempt=2, newest_complete=1900)
    memory, found = judge(memory, [sample(memory=MemoryRoom(20 * GIB, 256 * GIB))], resumed)
    assert found == ()
    assert memory.points == ()


@given(
    first=st.integers(GIB, 500 * GIB),
    noise=st.lists(st.floats(-0.01, 0.01), min_size=1, max_size=60),
    free_bytes=st.integers(0, 10 * GIB),
)
def test_memory_that_only_wavers_does_not_grow(first: int, noise: list[float], free_bytes: int) -> None:
    points = [HeldPoint(100 * number, int(first * (1 + ratio))) for number, ratio in enumerate(noise)]
    assert measure_growth(points, free_bytes, 10**9) is None


@given(
    first=st.integers(GIB, 100 * GIB),
    per_save=st.integers(100 * MIB, 10 * GIB),
    seed=st.integers(0, 1000),
    free_bytes=st.integers(GIB, 500 * GIB),
)
def test_a_steady_leak_is_measured(first: int, per_save: int, seed: int, free_bytes: int) -> None:
    wavers = random.Random(seed)
    count = WARM_SAVES + LEAST_POINTS + max(20, 2 * first // (10 * per_save))
    points = [
        HeldPoint(10 * number, first + number * per_save + int(wavers.uniform(-0.05, 0.05) * per_save))
        for number in range(count)
    ]
    found = measure_growth(points, free_bytes, 10**9)
    assert found is not None
    assert found.bytes_per_save == pytest.approx(per_save, rel=0.05)
    assert found.saves_left == pytest.approx(free_bytes / per_save, rel=0.05)
    assert found.too_much


# --- healthy running --------------------------------------------------------------------------------


def test_an_hour_of_healthy_running_reports_nothing() -> None:
    """Six minutes between saves; staging buffers come with the first, evaluations and workers make peaks."""
    wavers = random.Random(7)
    memory = HostHistory()
    for tick in range(360):
        at_s = 10.0 * tick
        save = int(at_s // 360)
        own_bytes = 8 * GIB + (2 * GIB if save else 0) + int(wavers.gauss(0, 30 * MIB))
        own_bytes += 4 * GIB if 200 < at_s % 360 < 320 else 0
        workers = tuple(process(200 + n, parent=100, own_bytes=GIB) for n in range(wavers.randrange(3)))
        now = sample(
            at_s,
            wall_s=1e9 + at_s * 1.0000005,
            processes=(process(own_bytes=own_bytes, open_files=wavers.randrange(40, 300)), *workers),
            memory=MemoryRoom(wavers.randrange(20, 40) * GIB, 64 * GIB),
            shared=MemoryRoom(wavers.randrange(20, 64) * MIB, 64 * MIB),
        )
        run = replace(RUN, step=tick * 10, newest_complete=save * 360, max_steps=10**6)
        memory, found = judge(memory, [now], run)
        assert found == (), f"at {at_s:.0f} s"


@given(
    st.lists(
        st.builds(
            sample,
            at_s=st.floats(0, 1e6),
            memory=st.builds(MemoryRoom, st.integers(0, 2**42), st.integers(0, 2**42)),
            group=st.none() | st.builds(MemoryRoom, st.integers(0, 2**42), st.integers(0, 2**42)),
            shared=st.none() | st.builds(MemoryRoom, st.integers(0, 2**42), st.integers(0, 2**42)),
            oom_kills=st.dictionaries(st.sampled_from(["/proc/vmstat", "/a/memory.events"]), st.integers(0, 9)),
            processes=st.lists(
                st.builds(process, pid=st.integers(1, 9), parent=st.integers(1, 9), own_bytes=st.integers(0, 2**42)),
                max_size=6,
                unique_by=lambda found: found.pid,
            ).map(tuple),
        ),
        max_size=8,
    )
)
def test_every_history_is_judged_and_every_alarm_is_whole(history: list[HostSample]) -> None:
    for alarm in alarms(*history, run=replace(RUN, roles={3: "trainer", 4: "inference"})):
        assert all((alarm.what, alarm.why, alarm.fix, alarm.subject))
        assert alarm.answer in ("note", "alert")
        assert alarm.watch == "host"


# --- control groups, as the kernel writes them ------------------------------------------------------


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_version_2_of_control_groups_is_read_up_to_the_tightest(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/job\n",
            "proc/vmstat": "oom_kill 5\n",
            "cgroup/pod/job/memory.events": "low 0\noom 1\noom_kill 1\n",
            "cgroup/pod/job/memory.max": "max\n",
            "cgroup/pod/job/memory.current": "100\n",
            "cgroup/pod/memory.events": "oom_kill 2\n",
            "cgroup/pod/memory.max": "1000\n",
            "cgroup/pod/memory.current": "700\n",
            "cgroup/pod/memory.stat": "anon 1\ninactive_file 200\n",
        },
    )
    groups = list_own_groups(tmp_path / "proc", tmp_path / "cgroup")
    assert [group.name for group in groups] == ["job", "pod"]
    assert find_tightest(groups) == {"free_bytes": 500, "total_bytes": 1000}
    assert [count for _, count in count_oom_kills(groups, tmp_path / "proc")] == [5, 1, 2]


def test_version_1_of_control_groups_is_read_where_the_path_is_of_another_namespace(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpuset:/\n4:memory:/docker/0123\n0::/\n",
            "cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
            "cgroup/memory/memory.limit_in_bytes": "9000\n",
            "cgroup/memory/memory.usage_in_bytes": "9000\n",
            "cgroup/memory/memory.stat": "inactive_file 7\ntotal_inactive_file 1000\n",
        },
    )
    groups = list_own_groups(tmp_path / "proc", tmp_path / "cgroup")
    assert find_tightest(groups) == {"free_bytes": 1000, "total_bytes": 9000}
    assert [count for _, count in count_oom_kills(groups, tmp_path / "proc")] == [4]


def test_a_limit_that_is_none_is_none(tmp_path: Path) -> None:
    write(tmp_path, {"memory.limit_in_bytes": "9223372036854771712\n", "memory.usage_in_bytes": "1\n"})
    assert find_tightest([tmp_path]) is None
    assert measure_shared_memory(tmp_path / "none") is None


# --- real processes ---------------------------------------------------------------------------------


@contextlib.contextmanager
def marked(run_dir: RunDir, code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that carries the run's mark, and is ended by its pid."""
    environment = os.environ | {"PRIME_TRAIN_RUN": str(run_dir.path), "RANK": "3"}
    started = subprocess.Popen([sys.executable, "-c", code], env=environment)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def state_with(pid: int) -> State:
    identity = identify(pid)
    assert identity is not None
    child = ChildProcess("trainer", pid, identity.start_ticks, "trainer.log")
    return State(
        attempts=(AttemptState(1),), live=Live(1, 0.0, children=(child,)), max_steps=10, step=4, newest_complete=2
    )


def test_what_the_watch_needs_of_a_state_is_taken_from_it() -> None:
    state = state_with(os.getpid())
    assert read_run(state) == WatchedRun(1, {os.getpid(): "trainer"}, 4, 10, 2)
    assert read_run(State()) == WatchedRun()


def until_alarm(watch: HostWatch, state: State) -> tuple[Alarm, ...]:
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        found = watch.look(state, time.time())
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("no alarm")


def test_a_process_of_the_run_that_leaves_files_open_is_found(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    code = (
        "import os, resource, time\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "kept = [os.open('/dev/null', os.O_RDONLY) for _ in range(56)]\ntime.sleep(3600)"
    )
    with marked(run_dir, code) as started:
        watch = HostWatch(run_dir, interval_s=0.1)
        watch.begin()
        try:
            assert len(watch.processes()) == 1
            (alarm,) = until_alarm(watch, state_with(started.pid))
        finally:
            watch.end()
    assert names([alarm]) == [("open_files", f"trainer rank 3 ({started.pid})", "alert")]
    assert "limit is 64" in alarm.what
    assert watch.processes() == ()


def test_a_watch_whose_program_was_ended_reports_it(tmp_path: Path) -> None:
    watch = HostWatch(RunDir(tmp_path), interval_s=0.1)
    watch.begin()
    try:
        (sampler,) = watch.processes()
        os.kill(sampler.pid, 9)
        (alarm,) = until_alarm(watch, State())
    finally:
        watch.end()
    assert names([alarm]) == [("host_not_watched", "this machine", "note")]
    assert "-9" in alarm.what


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group (version 1) of 64 MB below this process's own; removed again."""
    own = list_own_groups()
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        pytest.skip(f"the kernel's log cannot be read: {error.strerror}")
    if os.geteuid() != 0 or not own or not (own[0] / "memory.limit_in_bytes").exists():
        pytest.skip("needs root and version 1 of the memory control group")
    group = own[0] / f"prime_train_test_{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(64 * MIB))
    except OSError as error:
        pytest.skip(f"no control group of one's own: {error.strerror}")
    yield group
    group.rmdir()


def test_a_process_that_the_kernel_kills_for_memory_is_named(small_group: Path, tmp_path: Path) -> None:
    """A real out-of-memory kill in a group of its own, seen through the machine's counter."""
    run_dir = RunDir(tmp_path)
    goes = tmp_path / "goes"
    code = (
        f"import os, time\nopen('{small_group}/cgroup.procs', 'w').write(str(os.getpid()))\n"
        f"while not os.path.exists('{goes}'): time.sleep(0.05)\n"
        "kept = []\nwhile True: kept.append(bytearray(2**20) * 1)"
    )
    with marked(run_dir, code) as started:
        watch = HostWatch(run_dir, interval_s=0.2)
        watch.begin()
        try:
            state = state_with(started.pid)
            deadline_s = time.monotonic() + DEADLINE_S
            while watch._memory.last is None or not watch._memory.last.processes:
                assert time.monotonic() < deadline_s
                watch.look(state, time.time())
                time.sleep(0.05)
            goes.touch()
            found = until_alarm(watch, state)
        finally:
            watch.end()
        assert started.wait(DEADLINE_S) == -9
    (alarm,) = found
    assert names([alarm]) == [("oom_kill", "trainer rank 3", "alert")]
