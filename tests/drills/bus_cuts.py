"""Disturbs the bus of a training: its server is killed, its network cut, its disk filled, its controller killed.

The controller and the training are on machines with networks of their own. Between two disturbances the training has a
time without one, with which its steps are compared. Every command is sent three times with one id: during the
disturbance, and twice after it. Run as a program it prints one JSON line; see `BusCounts`:

    python -m tests.drills.bus_cuts FOLDER [--cut-s 30] [--quiet-s 30] [--rounds 1] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import errno
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from prime_train.bus.base import BusError
from prime_train.bus.credentials import read_credentials
from prime_train.bus.fleet import EMPTY
from prime_train.bus.fleet_events import fold_event
from prime_train.bus.fleet_store import BUCKET
from prime_train.bus.nats import NatsBus
from prime_train.bus.server_folder import CONTROLLER, credentials_file, server_folder
from prime_train.bus.spool import is_known
from prime_train.core.rundir import RunDir
from prime_train.events import CommandAccepted, Follower, RequestAnswered, SettingsAccepted, StopAsked, TrainerStarted
from tests.drills.networks import Networks, joined_networks
from tests.system.control.served import serve
from tests.unit.cli import small
from tests.unit.cli.commands import PROGRAM, clean_environment, wait_until

_MACHINE, _JOB = "m2", "small"
_NAME = f"{_MACHINE}/{_JOB}"
_ENDLESS = 10**6
_SETTINGS = (
    *(f"run.max_steps={_ENDLESS}", f"checkpoint.interval_steps={_ENDLESS}", f"eval.interval_steps={_ENDLESS}"),
    *("model.hidden_size=128", "model.layers=2", "data.ctx_tokens=128"),
)
_STORE_MIB = 48
_KILL_EVERY_S, _CONTROLLER_AWAY_S, _TICK_S, _SOON_S = 3.0, 10.0, 0.5, 1.0
_WARM_STEPS = 50
_LIMIT_S = 240.0
_DONE = ("accepted", "done")
_KEPT = ("settings", "checkpoints", "failures")  # lists of a document that each event adds to once


@dataclass
class Window:
    """A time of the training. Seconds of a step are those of metrics.jsonl; `cpu_s` is of the trainer, per step."""

    kind: str
    seconds: float
    steps: int
    median_s: float
    p99_s: float
    cpu_s: float
    seen: list[str] = field(default_factory=list)  # each change of the liveness that the page shows, with its time
    remarks: list[str] = field(default_factory=list)


@dataclass
class BusCounts:
    """What was seen. Those after `editors` must be empty or 0."""

    windows: list[Window] = field(default_factory=list)
    slower: dict[str, list[float]] = field(default_factory=dict)  # kind -> median, p99, cpu over those of quiet times
    quiet_spread: float = 0.0  # of the medians of the quiet times: the longest over the shortest
    events: int = 0
    commands: int = 0
    editors: list[str] = field(default_factory=list)  # what two that change one thing at once are answered
    lost: int = 0
    doubled: int = 0
    commands_lost: list[str] = field(default_factory=list)
    commands_twice: list[str] = field(default_factory=list)
    failures: int = 0
    page_differs: list[str] = field(default_factory=list)  # after the controller was killed and started again
    left: list[str] = field(default_factory=list)  # processes after the end


class _Drill:
    """A controller in this network, and a training in that of another machine."""

    def __init__(self, folder: Path, networks: Networks, quiet_s: float, cut_s: float, stack: ExitStack) -> None:
        self.folder, self.networks, self.quiet_s, self.cut_s, self.stack = folder, networks, quiet_s, cut_s, stack
        self.store = server_folder(folder / "own" / "runs") / "store"
        self.store.mkdir(mode=0o700, parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_STORE_MIB}m", "tmpfs", self.store], check=True)
        options = ("--bus", "nats", "--bus-host", networks.address(0), "--add-machine", _MACHINE)
        self.served = stack.enter_context(serve(folder / "own", 0, *options))
        self.run_dir = RunDir((folder / "other" / "runs" / _JOB).resolve())
        self.training = stack.enter_context(self._train())
        self.pool = stack.enter_context(ThreadPoolExecutor(4))
        self.windows: list[Window] = []
        self.sent: dict[str, str] = {}  # the kind of each command by its id
        self.editors: list[str] = []
        wait_until(lambda: self.step() > _WARM_STEPS or self.training.poll() is not None)
        wait_until(lambda: self.row().get("step", 0) > 0)

    @contextmanager
    def _train(self) -> Iterator[subprocess.Popen[bytes]]:
        (self.folder / "other").mkdir()
        small.write(self.folder / "other")
        bus = ("--bus", self.served.bus["address"])
        settings = (*_SETTINGS, f"prime_train.bus.credentials_file={self.served.bus['machines'][_MACHINE]}")
        words = (*bus, "--no-validate", *(word for one in settings for word in ("--set", one)))
        command = [*self.networks.enter(1), str(PROGRAM), "run", "run.toml", *words]
        with open(self.folder / "output", "ab") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder / "other",
                env=clean_environment() | {"OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=output,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(_LIMIT_S)

    # --- what is read -------------------------------------------------------------------------------

    def events(self) -> list[Any]:
        return [record.event for record in Follower(self.run_dir.events, brief=()).poll()]

    def step_times(self) -> dict[int, float]:
        """The seconds of each step; the last line may not be whole."""
        if not self.run_dir.metrics.exists():
            return {}
        lines = map(json.loads, self.run_dir.metrics.read_text().split("\n")[:-1])
        return {line["step"]: line["step_s"] for line in lines}

    def step(self) -> int:
        return max(self.step_times(), default=0)

    def state(self) -> dict[str, Any]:
        return self.served.get("/api/state").document

    def row(self) -> dict[str, Any]:
        found: dict[str, Any] = self.state()["runs"].get(_NAME, {})
        return found

    def _trainer(self) -> psutil.Process:
        started = [event for event in self.events() if isinstance(event, TrainerStarted)]
        return psutil.Process(started[-1].pid)

    # --- windows ------------------------------------------------------------------------------------

    def window(self, kind: str, disturb: Callable[[list[str], list[str]], None]) -> None:
        """Disturb the training, send it a command meanwhile, and once more after it."""
        trainer, first, began_s = self._trainer(), self.step(), time.monotonic()
        before = trainer.cpu_times()
        command_id = self._choose_command()
        during = self.pool.submit(self._send_soon, command_id)
        seen: list[str] = []
        remarks: list[str] = []
        disturb(seen, remarks)
        seconds, last, after = time.monotonic() - began_s, self.step(), trainer.cpu_times()
        during.result()
        for _ in range(2):
            wait_until(lambda: self._send(command_id) in _DONE)
        wait_until(lambda: self.row().get("liveness") == "live")
        times = sorted(time_s for step, time_s in self.step_times().items() if first < step <= last)
        cpu_s = (after.user + after.system - before.user - before.system) / max(1, len(times))
        p50_s, p99_s = median(times), times[int(0.99 * len(times))]
        figures = [round(one, 5) for one in (p50_s, p99_s, cpu_s)]
        self.windows.append(
            Window(kind, round(seconds, 1), len(times), figures[0], figures[1], figures[2], seen, remarks)
        )

    def _choose_command(self) -> str:
        """A checkpoint or a change of settings, in turn."""
        number = len(self.sent) + 1
        command_id = f"{('change', 'save')[number % 2]}-{number}"
        self.sent[command_id] = "command_requested" if number % 2 else "settings_requested"
        return command_id

    def _send_soon(self, command_id: str) -> str:
        time.sleep(_SOON_S)  # when a person gives a command is an input
        return self._send(command_id)

    def _send(self, command_id: str) -> str:
        number = int(command_id.rpartition("-")[2])
        body: dict[str, Any] = {"command": "checkpoint", "by": "drill"}
        if self.sent[command_id] == "settings_requested":
            body = _change_rate(number, number // 2 - 1, "drill")
        try:
            return str(self._request(self.sent[command_id], command_id, body).get("outcome", "not known"))
        except (OSError, ValueError):  # the controller is away
            return "no answer"

    def _request(self, kind: str, request_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.served.send({"run": _NAME, "kind": kind, "id": request_id, "body": body}).document

    def edit_at_once(self) -> None:
        """Two people change the same settings at one moment."""
        expected = sum(kind == "settings_requested" for kind in self.sent.values())

        def edit(number: int) -> dict[str, Any]:
            return self._request(
                "settings_requested", f"both-{number}", _change_rate(number, expected, f"editor {number}")
            )

        self.editors = [f"{one['outcome']}: {one['what']}" for one in self.pool.map(edit, (901, 902))]

    def watch(self, seconds: float, seen: list[str], remarks: list[str]) -> None:
        """Wait, and note what the page shows."""
        began_s = time.monotonic()
        while (at_s := time.monotonic() - began_s) < seconds:
            with suppress(OSError, ValueError):
                state = self.state()
                liveness = str(state["runs"].get(_NAME, {}).get("liveness"))
                if not seen or seen[-1].rpartition(" ")[2] != liveness:
                    seen.append(f"{at_s:.1f} {liveness}")
                remark = state["controller"]["remark"]
                if remark and remark[:60] not in [one[:60] for one in remarks]:
                    remarks.append(remark[:200])
            time.sleep(_TICK_S)

    def leave_alone(self, seen: list[str], remarks: list[str]) -> None:
        self.watch(self.quiet_s, seen, remarks)

    def kill_servers(self, seen: list[str], remarks: list[str]) -> None:
        """Again and again, as each is started again within a second or two."""
        until_s = time.monotonic() + self.quiet_s
        while time.monotonic() < until_s:
            for child in psutil.Process(self.served.process.pid).children():
                if child.name() == "nats-server":
                    child.kill()
            self.watch(_KILL_EVERY_S, seen, remarks)

    def cut(self, seen: list[str], remarks: list[str]) -> None:
        self.networks.cut(1)
        self.watch(self.cut_s, seen, remarks)
        self.networks.mend(1)

    def fill_disk(self, seen: list[str], remarks: list[str]) -> None:
        until_s = time.monotonic() + self.quiet_s
        filler = self.store / "filler"
        while time.monotonic() < until_s:
            _fill(filler)  # again, because the server deletes what the controller has taken
            self.watch(_TICK_S, seen, remarks)
        filler.unlink()

    def kill_controller(self, seen: list[str], remarks: list[str]) -> None:
        self.restart_controller(_CONTROLLER_AWAY_S)
        self.watch(max(0.0, self.quiet_s - _CONTROLLER_AWAY_S), seen, remarks)

    def restart_controller(self, away_s: float) -> None:
        self.served.process.send_signal(signal.SIGKILL)
        self.served.process.wait(_LIMIT_S)
        time.sleep(away_s)  # how long it is away is an input
        options = ("--bus", "nats", "--bus-host", self.networks.address(0))
        self.served = self.stack.enter_context(serve(self.folder / "own", self.served.port, *options))

    # --- the end ------------------------------------------------------------------------------------

    def stop(self) -> None:
        for _ in range(2):
            wait_until(lambda: self._stop() == "accepted" or self.training.poll() is not None)
        self.training.wait(_LIMIT_S)
        wait_until(lambda: self.row().get("state") == "stopped")
        # The agent sends the latest figures once more before it ends, and they are compared after this.
        wait_until(lambda: not self.networks.list_processes(1))

    def _stop(self) -> str:
        return str(self._request("stop_requested", "stop-1", {}).get("outcome"))

    def count(self) -> BusCounts:
        counts = BusCounts(self.windows, editors=self.editors)
        quiet = [one for one in self.windows if one.kind == "quiet"]
        counts.quiet_spread = round(max(one.median_s for one in quiet) / min(one.median_s for one in quiet), 3)
        for kind in {one.kind for one in self.windows} - {"quiet"}:
            ratios = zip(
                *(self._compare(place) for place, one in enumerate(self.windows) if one.kind == kind), strict=True
            )
            counts.slower[kind] = [round(median(one), 3) for one in ratios]
        before, detail = self.state(), self.served.get(f"/api/run?name={_NAME}").document
        self.restart_controller(0.0)
        wait_until(lambda: self.row() != {})
        after = self.state()
        counts.page_differs = _differences({one: before[one] for one in ("runs", "failures", "machines")}, after)
        counts.page_differs += _differences(detail, self.served.get(f"/api/run?name={_NAME}").document)
        counts.failures = len(before["failures"].get(_NAME, []))
        self._count_events(counts)
        self._count_commands(counts)
        return counts

    def _compare(self, place: int) -> tuple[float, float, float]:
        """Median, p99 and processor time of a window over those of the quiet ones beside it."""
        beside = [self.windows[place - 1], self.windows[place + 1]]
        own = self.windows[place]
        names = ("median_s", "p99_s", "cpu_s")
        first, second, third = (
            getattr(own, name) / (sum(getattr(one, name) for one in beside) / len(beside)) for name in names
        )
        return first, second, third

    def _count_events(self, counts: BusCounts) -> None:
        """Compare what the controller's store has with the files of the run."""
        folder = server_folder(self.folder / "own" / "runs")
        file = str(credentials_file(folder, CONTROLLER))
        bus = NatsBus(read_credentials(self.served.bus["address"], file, None, {}), "drill")
        records = list(Follower(self.run_dir.events, brief=()).poll())
        counts.events = len(records)
        try:
            assert bus.wait_connected(_LIMIT_S)
            key = f"{_JOB}.{_MACHINE}"
            document: dict[str, Any] = {}

            def is_whole() -> bool:
                with suppress(BusError):
                    found = bus.kv(BUCKET).get(key)
                    document.update(found.value if found and found.value else {})
                return bool(document) and all(is_known(document["sent"], record) for record in records)

            with suppress(AssertionError):  # counted below
                wait_until(is_whole)
        finally:
            bus.close()
        counts.lost = sum(not is_known(document["sent"], record) for record in records) + document.get("gaps", 0)
        counts.lost += document.get("damaged", 0)
        folded: Any = EMPTY
        for record in records:
            folded = fold_event(folded, record)
        entries = Counter(one["key"] for one in document["entries"])
        counts.doubled = sum(entries.values()) - len(entries)
        for name in _KEPT:
            counts.doubled += _name_all(name, json.loads(json.dumps(folded[name]))) != _name_all(name, document[name])

    def _count_commands(self, counts: BusCounts) -> None:
        events = self.events()
        counts.commands = len(self.sent) + 1
        answers = [event for event in events if isinstance(event, RequestAnswered)]
        answered = Counter((event.request_id, event.outcome) for event in answers)
        with_answer = {event.request_id for event in answers}
        taken = Counter(event.request_id for event in events if isinstance(event, CommandAccepted))
        changes = sum(isinstance(event, SettingsAccepted) for event in events)
        stops = sum(isinstance(event, StopAsked) for event in events)
        asked = [one for one, kind in self.sent.items() if kind == "command_requested"]
        counts.commands_lost = [one for one in self.sent if one not in with_answer]
        counts.commands_lost += [one for one in asked if not taken[one]]
        counts.commands_twice = [f"{one} {outcome}" for (one, outcome), times in answered.items() if times > 1]
        counts.commands_twice += [one for one, times in taken.items() if times > 1]
        if changes != len(self.sent) - len(asked) + 1 or stops != 1:  # one more of the two editors
            counts.commands_twice.append(f"{changes} changes of settings, {stops} stops")


def _change_rate(number: int, expected: int, by: str) -> dict[str, Any]:
    return {"values": {"optim.lr": 1e-4 + 1e-6 * number}, "expected": expected, "by": by, "why": ""}


def _fill(path: Path) -> None:
    """Write until nothing fits any more."""
    with open(path, "ab", buffering=0) as file:
        for size in (2**20, 4096):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def _differences(before: Any, after: Any, place: str = "") -> list[str]:
    """Where two documents differ, but for times."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = [name for name in before if not name.endswith("_s")]
        return [one for name in names for one in _differences(before[name], after.get(name), f"{place}/{name}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [one for number, pair in pairs for one in _differences(*pair, f"{place}/{number}")]
    return [] if before == after else [f"{place}: {str(before)[:80]} became {str(after)[:80]}"]


KINDS = {
    "server killed": _Drill.kill_servers,
    "network cut": _Drill.cut,
    "disk full": _Drill.fill_disk,
    "controller killed": _Drill.kill_controller,
}


def _disturb(given: argparse.Namespace, networks: Networks) -> BusCounts:
    """In the network of the controller."""
    folder = Path(given.folder)
    (folder / "own" / "runs").mkdir(parents=True)
    with ExitStack() as stack:
        drill = _Drill(folder, networks, given.quiet_s, given.cut_s, stack)
        drill.window("quiet", drill.leave_alone)
        for _ in range(given.rounds):
            for kind in given.only or KINDS:
                drill.window(kind, lambda seen, remarks, kind=kind: KINDS[kind](drill, seen, remarks))  # type: ignore[misc]
                drill.window("quiet", drill.leave_alone)
        drill.edit_at_once()
        drill.stop()
        counts = drill.count()
    counts.left = list(networks.list_processes(1).values())
    return counts


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.drills.bus_cuts")
    parser.add_argument("folder")
    parser.add_argument("--cut-s", type=float, default=30.0)
    parser.add_argument("--quiet-s", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=list(KINDS))
    parser.add_argument("--networks", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def run(*arguments: str) -> BusCounts:
    """The drill in networks of its own."""
    with joined_networks(2) as networks:
        module = [sys.executable, "-m", "tests.drills.bus_cuts", *arguments, "--networks", networks.prefix]
        done = subprocess.run([*networks.enter(0), *module], stdout=subprocess.PIPE, check=True, text=True)
    found = json.loads(done.stdout)
    return BusCounts(**found | {"windows": [Window(**one) for one in found["windows"]]})


def _name_all(kind: str, listed: list[Any]) -> list[Any]:
    """What is in a list. A change of settings by its version, because the agent sends its values in another form."""
    return [one["version"] for one in listed] if kind == "settings" else listed


def main() -> None:
    given = _parse(sys.argv[1:])
    counts = _disturb(given, Networks(given.networks)) if given.networks else run(*sys.argv[1:])
    sys.stdout.write(json.dumps(asdict(counts)) + "\n")


if __name__ == "__main__":
    main()
