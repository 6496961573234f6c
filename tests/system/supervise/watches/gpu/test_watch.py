"""The GPU watch with a real child, which loads a stand-in of the driver's library through nvidia-ml-py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from prime_train.core.process_id import Identity, identify
from prime_train.core.rundir import RunDir
from prime_train.events import Progress, Record
from prime_train.supervise.core.state import ChildProcess, Live, State
from prime_train.supervise.launch import environment
from prime_train.supervise.watches import sampler
from prime_train.supervise.watches.gpu import watch as gpu
from prime_train.supervise.watches.gpu.watch import GpuWatch
from prime_train.supervise.watches.kernel_log import KernelLog
from prime_train.supervise.watches.sampler import Sampler
from prime_train.supervise.watches.watch import Alarm, Watch

SOURCE = Path(__file__).parents[4] / "fakes" / "nvml.c"
INTERVAL_S = 0.05
DEADLINE_S = 60.0
GIB = 2**30
Driver = Callable[..., None]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler for the stand-in of the driver")
    folder = tmp_path_factory.mktemp("driver")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", SOURCE], check=True)
    return folder


@pytest.fixture
def driver(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Says what the driver is to say: `driver(lost=2)`. "." in a name is written "__": `driver(ecc__2=1)`."""
    state = tmp_path / "driver.txt"

    def set_values(**values: int) -> None:
        beside = tmp_path / "driver.tmp"
        beside.write_text("".join(f"{name.replace('__', '.')} {value}\n" for name, value in values.items()))
        beside.replace(state)  # a half-written file would be another driver

    set_values()
    monkeypatch.setenv("FAKE_NVML", str(state))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    return set_values


class Recorded:
    """A Sampler, of the watch's program or of another one, that keeps what went through it and counts its children."""

    def __init__(self, program: Path | None) -> None:
        self.program = program
        self.lines: list[dict[str, Any]] = []
        self.children: list[Identity] = []

    def __call__(self, program: Path, arguments: tuple[str, ...], log: Path, **more: Any) -> Sampler:
        sampler = Sampler(self.program or program, arguments, log, **more)
        take, begin = sampler.take, sampler.begin

        def kept() -> list[dict[str, Any]]:
            taken = take()
            self.lines += taken
            return taken

        def counted() -> None:
            begin()
            self.children += sampler.processes()

        sampler.take = kept  # type: ignore[method-assign]
        sampler.begin = counted  # type: ignore[method-assign]
        return sampler

    @property
    def readings(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if "gpus" in line]


class Seen:
    """A watch in a loop: `until` looks until a condition holds."""

    def __init__(self, watch: GpuWatch, recorded: Recorded, state: State) -> None:
        self.watch, self.recorded, self.state = watch, recorded, state
        self.alarms: tuple[Alarm, ...] = ()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        give_up_s = time.monotonic() + DEADLINE_S
        while True:
            self.alarms = self.watch.look(self.state, time.time())
            if holds():
                return
            assert time.monotonic() < give_up_s, f"{what}: {self.alarms}"
            time.sleep(0.02)

    def until_alarm(self, name: str) -> Alarm:
        self.until(lambda: any(alarm.name == name for alarm in self.alarms), name)
        return next(alarm for alarm in self.alarms if alarm.name == name)

    def until_well(self) -> None:
        self.until(lambda: not self.alarms and bool(self.recorded.readings), "no alarm")

    def readings(self, more: int) -> None:
        enough = len(self.recorded.readings) + more
        self.until(lambda: len(self.recorded.readings) >= enough, f"{more} more readings")


def live(**said: Any) -> State:
    return State(live=Live(1, 0.0, **said))


Start = Callable[..., Seen]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    begun: list[GpuWatch] = []

    def run(kmsg: Path | None = None, interval_s: float = INTERVAL_S, program: Path | None = None) -> Seen:
        recorded = Recorded(program)
        watch = GpuWatch(
            RunDir(tmp_path / "run"),
            answer="restart",
            kmsg=kmsg or tmp_path / "no-kmsg",
            interval_s=interval_s,
            sampler=recorded,
        )
        begun.append(watch)
        watch.begin()
        return Seen(watch, recorded, live())

    yield run
    for watch in begun:
        children = watch.processes()
        watch.end()
        assert not [child for child in children if child.alive]


def test_the_watch_is_a_watch(tmp_path: Path) -> None:
    watch: Watch = GpuWatch(RunDir(tmp_path), answer="alert")
    assert watch.name == "gpu"
    assert watch.look(State(), 0.0) == ()
    watch.end()


@pytest.mark.parametrize(
    ("said", "name", "subject", "answer"),
    [
        ({"lost": 2}, "gpu_lost", "GPU 1", "restart"),
        ({"reset": 1}, "gpu_reset_required", "GPU 0", "restart"),
        ({"half": 2}, "gpu_reset_required", "GPU 1", "restart"),
        ({"recovery__2": 1}, "gpu_recovery", "GPU 1", "restart"),
        ({"ecc__2": 3}, "gpu_ecc", "GPU 1", "restart"),
        ({"remap_failed__1": 1}, "gpu_remap_failed", "GPU 0", "restart"),
        ({"remap_pending__1": 1}, "gpu_remap_pending", "GPU 0", "alert"),
    ],
)
def test_a_fault_in_mid_run_is_found_within_two_samples_and_passes(
    driver: Driver, start: Start, said: dict[str, int], name: str, subject: str, answer: str
) -> None:
    seen = start()
    seen.readings(2)
    assert seen.alarms == ()
    driver(**said)
    said_s = time.monotonic()
    alarm = seen.until_alarm(name)
    assert (alarm.subject, alarm.answer, alarm.where) == (subject, answer, f"GPU-{'ab'[int(subject[-1])] * 4}")
    assert len([reading for reading in seen.recorded.readings if reading["taken_s"] > said_s]) <= 2
    driver()
    seen.until_well()


def test_a_gpu_that_falls_out_of_the_list_stays_lost(driver: Driver, start: Start) -> None:
    seen = start()
    seen.readings(1)
    driver(lost=1)
    seen.until_alarm("gpu_lost")
    driver(gone=1)
    seen.until(lambda: len(seen.recorded.readings[-1]["gpus"]) == 1, "a shorter list")
    assert [(alarm.name, alarm.subject) for alarm in seen.alarms] == [("gpu_lost", "GPU 0")]


def test_an_xid_comes_by_the_drivers_events(driver: Driver, start: Start) -> None:
    seen = start(interval_s=30.0)
    seen.readings(1)
    driver(event=1, xid=119, xid_gpu=2)
    alarm = seen.until_alarm("gpu_xid_119")
    assert (alarm.subject, alarm.where, alarm.answer) == ("GPU 1", "GPU-bbbb", "restart")
    assert len(seen.recorded.readings) == 1  # long before the next sample


@pytest.mark.parametrize("said", [{"mute": 1}, {"lost": 2}])
def test_events_are_heard_again_after_a_set_that_failed(driver: Driver, start: Start, said: dict[str, int]) -> None:
    driver(**said)
    seen = start()
    seen.readings(3)
    driver()
    seen.until_well()
    seen.readings(3)
    driver(event=1, xid=48)
    assert seen.until_alarm("gpu_xid_48").subject == "GPU 0"


@pytest.mark.parametrize("kind", ["file", "fifo"])
def test_an_xid_comes_by_the_kernels_log(driver: Driver, start: Start, tmp_path: Path, kind: str) -> None:
    driver(deaf=1)
    log = tmp_path / "kmsg"
    if kind == "fifo":
        os.mkfifo(log)
    else:
        log.write_text("4,5,1,-;NVRM: Xid (PCI:0000:3b:00): 62, from before the run\n")
    seen = start(log, interval_s=30.0)
    seen.readings(1)
    with open(log, "a") as file:
        file.write("4,6,1,-;NVRM: Xid (PCI:0000:3C:00): 79, GPU has fallen off the bus.\n6,7,1,-;usb 1-1: ")
    alarm = seen.until_alarm("gpu_xid_79")
    assert (alarm.subject, alarm.where, alarm.answer) == ("GPU 1", "GPU-bbbb", "restart")
    assert [alarm.name for alarm in seen.alarms] == ["gpu_xid_79"]


def test_the_signals_of_a_failure_to_come_are_sampled(driver: Driver, start: Start) -> None:
    driver(corrected__2=7, rows__2=2, replays__2=11)
    seen = start()
    seen.readings(1)
    named = ("corrected_errors", "remapped_rows", "pcie_replays", "slowdown_c")
    found = [tuple(gpu[name] for name in named) for gpu in seen.recorded.readings[-1]["gpus"]]
    assert found == [(0, 0, 0, 92), (7, 2, 11, 92)]


def test_an_old_driver_and_a_bare_gpu_have_less_to_report(driver: Driver, start: Start) -> None:
    driver(old=1, bare=1, used=GIB, user=os.getpid())
    seen = start()
    seen.readings(5)
    assert seen.alarms == ()
    (said, _) = seen.recorded.readings[-1]["gpus"]
    parents = [parent.pid for parent in psutil.Process().parents()]
    use = {"pid": os.getpid(), "used_bytes": GIB, "ancestors": parents, "marked": False}
    assert said == {
        "index": 0,
        "uuid": "GPU-aaaa",
        "pci": "0000:3b:00",
        "used_bytes": GIB,
        "total_bytes": 150_754_820_096,
        "uses": [use],
    } | dict.fromkeys(
        [
            *("temperature_c", "utilisation_percent", "slow_reasons", "uncorrected_errors"),
            *("remap_pending", "remap_failed", "recovery"),
            *("corrected_errors", "remapped_rows", "pcie_replays", "slowdown_c"),
        ]
    )


def test_a_wedged_driver_is_reported_and_asked_again(
    driver: Driver, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "_RETRY_S", 0.2)
    log = tmp_path / "kmsg"
    log.write_text("6,1,1,-;boot\n")
    seen = start(log)
    seen.readings(2)
    driver(wedge=1)
    with open(log, "a") as file:
        file.write("4,2,1,-;NVRM: Xid (PCI:0000:3b:00): 119, Timeout of waiting for RPC response from GSP\n")
    seen.until_alarm("gpu_xid_119")  # told though the driver holds the child
    alarm = seen.until_alarm("gpu_driver_silent")
    assert alarm.answer == "alert"
    seen.until(lambda: len(seen.recorded.children) > 1, "another child")
    assert not seen.recorded.children[0].alive
    driver()
    seen.until(lambda: [alarm.name for alarm in seen.alarms] == ["gpu_xid_119"], "an answer of the driver")


@pytest.mark.parametrize("said", [{"init": 9}, {"init": 12}, {"count": 0}])
def test_a_machine_without_a_driver_is_reported_once_and_left_alone(
    driver: Driver, start: Start, monkeypatch: pytest.MonkeyPatch, said: dict[str, int]
) -> None:
    monkeypatch.setattr(sampler, "_RETRY_S", 0.0)
    driver(**said)
    seen = start()
    seen.until_alarm("gpu_no_driver")
    seen.until(lambda: seen.watch.processes() == (), "an end of the child")
    for _ in range(50):
        alarms = seen.watch.look(seen.state, time.time())
        assert [(alarm.name, alarm.answer) for alarm in alarms] == [("gpu_no_driver", "note")]
    assert len(seen.recorded.children) == 1


def test_a_driver_that_refuses_is_asked_again(driver: Driver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_RETRY_S", 0.1)
    driver(init=18)
    seen = start()
    assert seen.until_alarm("gpu_driver_refuses").answer == "alert"
    driver()
    seen.until_well()


def test_a_child_that_cannot_even_ask_is_reported_with_its_log(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "_RETRY_S", 0.1)
    program = tmp_path / "broken.py"
    program.write_text("raise SystemExit('no pynvml here')\n")
    seen = start(program=program)
    alarm = seen.until_alarm("gpu_driver_refuses")
    assert "exit code 1" in alarm.what
    assert "watches/gpu.log" in alarm.what
    assert "no pynvml here" in (tmp_path / "run" / "watches" / "gpu.log").read_text()


class Stuck(Sampler):
    """A child that waits in the kernel, silent and not to be ended. Without a driver no process can be made to."""

    begun = 0

    def begin(self) -> None:
        type(self).begun += 1
        if self.begun == 1:
            super().begin()

    @property
    def ended(self) -> int | None:
        return None

    def processes(self) -> tuple[Identity, ...]:
        own = identify(os.getpid())
        assert own is not None
        return (own,)


def test_there_is_never_more_than_one_stuck_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = tmp_path / "silent.py"
    silent.write_text("import time; time.sleep(600)\n")
    monkeypatch.setattr(gpu, "_PROGRAM", silent)
    now_s = 1000.0
    watch = GpuWatch(RunDir(tmp_path), answer="restart", sampler=Stuck, clock=lambda: now_s)
    watch.begin()
    for now_s in range(1000, 4600):  # noqa: B007 - the clock
        alarms = watch.look(State(), 0.0)
    watch.end()
    assert Stuck.begun == 1
    assert [alarm.name for alarm in alarms] == ["gpu_driver_silent"]


# --- whose process it is -----------------------------------------------------------------------------


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    begun: list[subprocess.Popen[bytes]] = []

    def run(marked: bool = False) -> subprocess.Popen[bytes]:
        mark = {environment.RUN: str(tmp_path / "run")} if marked else {}
        sleeper = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
        begun.append(subprocess.Popen(sleeper, env=os.environ | mark, stdout=subprocess.PIPE))
        assert begun[-1].stdout is not None
        begun[-1].stdout.readline()  # its environment is its own once it runs
        return begun[-1]

    yield run
    for one in begun:
        one.kill()
        one.wait()
        assert one.stdout is not None
        one.stdout.close()


def stepped(*pids: int) -> State:
    children = []
    for pid in pids:
        identity = identify(pid)
        assert identity is not None
        children.append(ChildProcess("trainer", pid, identity.start_ticks, "trainer.log"))
    progress = Progress(attempt=1, step=1, loss=1.0, tokens_per_s=1.0, tokens_seen=1)
    return live(children=tuple(children), first_progress=Record(0.0, "trainer", 1, progress))


def test_a_trainer_that_lives_and_lost_its_memory_is_found(
    driver: Driver, start: Start, process: Callable[..., subprocess.Popen[bytes]]
) -> None:
    trainer = process()
    driver(count=1, used=GIB, user=trainer.pid)
    seen = start()
    seen.state = stepped(trainer.pid)
    seen.readings(6)
    assert seen.alarms == ()
    driver(count=1)
    alarm = seen.until_alarm("gpu_memory_gone")
    assert (alarm.subject, alarm.answer, alarm.cause_class) == ("GPU 0", "restart", "hang")
    assert "trainer" in alarm.what


@pytest.mark.parametrize("ready", [(), ("inference",)])
def test_a_server_is_past_its_start_once_it_answers(
    driver: Driver, start: Start, process: Callable[..., subprocess.Popen[bytes]], ready: tuple[str, ...]
) -> None:
    server = process()
    identity = identify(server.pid)
    assert identity is not None
    child = ChildProcess("inference", server.pid, identity.start_ticks, "inference.log")
    driver(count=1, used=GIB, user=server.pid)
    seen = start()
    seen.state = live(roles=("inference",), services=("inference",), ready=ready, children=(child,))
    seen.readings(3)
    driver(count=1)
    seen.readings(6)
    assert [alarm.name for alarm in seen.alarms] == ["gpu_memory_gone"] * len(ready)


def test_strangers_are_reported_and_orphans_of_the_run_are_not(
    driver: Driver, start: Start, process: Callable[..., subprocess.Popen[bytes]]
) -> None:
    trainer, orphan, stranger = process(), process(marked=True), process()
    driver(used=GIB, user=trainer.pid, user__2=orphan.pid)
    seen = start()
    seen.state = stepped(trainer.pid)
    seen.readings(6)
    assert seen.alarms == ()
    driver(used=GIB, user=trainer.pid, user__2=stranger.pid)
    alarm = seen.until_alarm("gpu_shared")
    assert (alarm.subject, alarm.answer) == ("GPU 1", "alert")
    assert f"process {stranger.pid} (1.0 GiB)" in alarm.what


def test_a_gpu_that_was_left_out_ends_nothing_any_more(driver: Driver, start: Start) -> None:
    driver(count=3)
    seen = start()
    assert seen.watch.remaining(()) == ()
    seen.readings(1)
    assert seen.watch.remaining(("GPU-bbbb",)) == ("GPU-aaaa", "GPU-cccc")
    driver(count=3, lost=2)
    assert seen.until_alarm("gpu_lost").answer == "restart"
    seen.state = replace(seen.state, left_out=("GPU-bbbb",))
    seen.readings(1)
    assert [(alarm.name, alarm.answer) for alarm in seen.alarms] == [("gpu_lost", "note")]


# --- the kernel's log --------------------------------------------------------------------------------


def test_a_second_child_reads_on_where_the_first_one_stood(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("4,5,1,-;NVRM: Xid (PCI:0000:3b:00): 62, from before the run\n")
    said: list[dict[str, Any]] = []
    first = KernelLog(path, -1, said.append)
    assert first.place.sequence == 5
    with open(path, "a") as file:
        file.write("4,6,1,-;NVRM: Xid (PCI:0000:3b:00): 119, between the two\n")
    second = KernelLog(path, first.place.sequence, said.append)
    assert second.place.sequence == 6
    assert [(line["code"], line["log_sequence"]) for line in said] == [(119, 6)]


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_a_log_that_cannot_be_read_is_done_without(tmp_path: Path, kind: str) -> None:
    log = KernelLog(tmp_path if kind == "folder" else tmp_path / "none", -1, print)
    log.follow()  # returns
    assert log.place.sequence == -1


def test_the_log_of_this_machine_is_read_to_its_end() -> None:
    path = Path("/dev/kmsg")
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        pytest.skip(f"the kernel's log is not for this user to read: {error.strerror}")
    assert KernelLog(path, -1, print).place.sequence > 0


def test_the_child_opens_no_cuda_and_takes_little_memory(driver: Driver, start: Start) -> None:
    driver(count=8, used=GIB, user=os.getpid())
    seen = start()
    seen.readings(20)
    (child,) = seen.watch.processes()
    maps = Path(f"/proc/{child.pid}/maps").read_text()
    assert "libnvidia-ml.so.1" in maps
    assert "libcuda" not in maps
    resident = psutil.Process(child.pid).memory_info().rss
    assert resident < 64 * 2**20
