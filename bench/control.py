"""Measures `prime-train control` with many runs: its first answer, its updates, its share of a core, many requests.

    python bench/control.py [--runs 1000] [--live 64] [--seconds 30] [--requests 10000]

The runs are made by hand. Those that are live have a machine of their own with eight GPUs, on a disk that all share, so
their supervisors are on other hosts. This process writes a step of each per second, spread over four moments, and
samples of the GPUs every ten seconds. CPU is user and system time of the controller. With a Chromium, the page is
opened as well.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import record
from tests.system.control.served import Served, serve
from tests.unit.views.written_runs import WHOLE_LIFE, write_run

from prime_train.core.rundir import RunDir
from prime_train.events import ChildStarted, EventLog, LaunchAsked, Progress, RunOpened, TrainerStarted

GPUS = 8  # of a machine
MOMENTS = 4  # of a second, in which a quarter of the live runs reports
SENDERS = 16
SHARE = 0.15  # of a core
ANSWER_S = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--live", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--requests", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for number in range(given.runs - given.live):
            write_run(folder / "runs" / f"ended{number:04d}", WHOLE_LIFE)
        live = [LiveRun(folder / "runs" / f"live{number:02d}", number) for number in range(given.live)]
        what = f"{given.runs} runs, {given.live * GPUS} GPUs"
        rows = measure_start(folder, what, "without an index")
        rows += measure_start(folder, what, "with its index", most=ANSWER_S)
        with serve(folder) as served:
            wait_complete(served)
            rows += measure_updates(served, live, given.seconds, what)
            rows += measure_page(served, what)
            rows += measure_requests(served, given.requests)
        record.write("control", rows)


class LiveRun:
    """A run on another machine, whose supervisor and trainer this process plays."""

    def __init__(self, path: Path, number: int) -> None:
        self.run_dir = RunDir(path)
        self.run_dir.events.mkdir(parents=True)
        self._host = f"node{number:02d}"
        self._step = 0
        self.run_dir.lock.write_text(f"1:1 {self._host}\n", encoding="utf-8")
        supervisor = EventLog(self.run_dir.events, "supervisor")
        supervisor.append(RunOpened(path.name, 1, 100_000, "0.1.0"))
        supervisor.append(LaunchAsked(1, 0))
        supervisor.append(ChildStarted(1, "trainer", 1, 1, "/nowhere/trainer.log"))
        self._pids = [100 + rank for rank in range(GPUS)]
        logs = [EventLog(self.run_dir.events, f"trainer-001-rank{rank}") for rank in range(GPUS)]
        for rank, (log, pid) in enumerate(zip(logs, self._pids, strict=True)):
            log.append(TrainerStarted(1, pid, rank, GPUS, "NVIDIA H100 80GB HBM3", "bf16", 10**9, 32_000, 0))
        for log in (supervisor, *logs[1:]):
            log.close()
        self._log = logs[0]
        self.sample()

    def step(self) -> None:
        self._step += 1
        loss = 8 / (1 + self._step / 100)
        self._log.append(Progress(1, self._step, loss, 400_000.0, self._step * 2**20))
        line = {"step": self._step, "loss": loss, "grad_norm": 1.0, "tokens_per_s": 4e5, "step_s": 1.0, "data_s": 0.01}
        with open(self.run_dir.metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def sample(self) -> None:
        self.run_dir.watches.mkdir(exist_ok=True)
        gpus = [
            {"index": index, "uuid": f"GPU-{self._host}-{index}", "used_bytes": 70 * 2**30, "total_bytes": 80 * 2**30}
            | {"utilisation_percent": 97, "temperature_c": 60 + self._step % 9, "uses": [{"pid": pid}]}
            for index, pid in enumerate(self._pids)
        ]
        document = {"version": 1, "host": self._host, "taken_s": time.time(), "gpus": gpus}
        path = self.run_dir.watches / "gpus.json"
        path.with_suffix(".tmp").write_text(json.dumps(document), encoding="utf-8")
        path.with_suffix(".tmp").replace(path)


def measure_start(folder: Path, what: str, how: str, **most: float) -> list[dict[str, object]]:
    """The first answer with every run, from the moment at which the address is printed."""
    with serve(folder) as served:
        began_s = time.monotonic()
        size = len(served.get("/api/state").text)
        answer_s = time.monotonic() - began_s
        wait_complete(served)
        complete_s = time.monotonic() - began_s
    print(f"# {how}: the answer has {size:,} bytes")
    return [
        record.emit(f"{what}: first answer {how}", [answer_s], **most),
        record.emit(f"{what}: every run is read {how}", [complete_s]),
    ]


def wait_complete(served: Served) -> None:
    while not served.get("/api/state").document["controller"]["is_complete"]:
        time.sleep(0.5)  # each answer has every run, and so takes time from the reading


def measure_updates(served: Served, live: list[LiveRun], seconds: float, what: str) -> list[dict[str, object]]:
    """Steps for `seconds`: updates that a reader gets, and CPU of the controller."""
    process = psutil.Process(served.process.pid)
    is_over = threading.Event()
    counts: Counter[str] = Counter()
    reader = threading.Thread(target=read_stream, args=(served, counts, is_over), daemon=True)
    reader.start()
    for moment in range(MOMENTS):  # what the first reader costs is not part of it
        write_moment(live, moment)
    before, began_s = sum(process.cpu_times()[:2]), time.monotonic()
    counts.clear()
    moments = int(seconds * MOMENTS)
    for moment in range(moments):
        write_moment(live, moment)
        if moment % (10 * MOMENTS) == 0:
            for run in live:
                run.sample()
        time.sleep(max(0.0, began_s + (moment + 1) / MOMENTS - time.monotonic()))
    took_s = time.monotonic() - began_s
    share = (sum(process.cpu_times()[:2]) - before) / took_s
    is_over.set()
    peak_mib = process.memory_info().rss / 2**20
    return [
        record.emit(f"{what}: CPU of the controller per second", [share], most=SHARE),
        record.emit(f"{what}: updates per second", [counts["change"] / took_s], unit="1/s"),
        record.emit(f"{what}: bytes of updates per second", [counts["bytes"] / took_s], unit="B/s"),
        record.emit(f"{what}: memory of the controller", [peak_mib], unit="MiB"),
    ]


def write_moment(live: list[LiveRun], moment: int) -> None:
    for run in live[moment % MOMENTS :: MOMENTS]:
        run.step()


def read_stream(served: Served, counts: Counter[str], is_over: threading.Event) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port)
    connection.request("GET", "/api/stream", headers=served.owner)
    stream = connection.getresponse()
    while not is_over.is_set():
        line = stream.readline()
        counts["bytes"] += len(line)
        if line.startswith(b"event: "):
            counts[line[7:].strip().decode()] += 1
    connection.close()


def measure_page(served: Served, what: str) -> list[dict[str, object]]:
    """From the opening of the page to its first paint, and to its first row and device; nothing without a Chromium."""
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        browser_path = None
    if browser_path is None:
        print("# no Chromium with playwright: the page is not opened")
        return []
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=flags)
        page = browser.new_page()
        page.goto(served.url)  # the cookie
        page.wait_for_selector("tr[data-run]")
        page.goto(f"{served.origin}/", wait_until="commit")
        page.wait_for_selector("[data-device]")
        rows_s = page.evaluate("performance.now()") / 1000
        paint_s = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1000
        browser.close()
    return [
        record.emit(f"{what}: first paint in Chromium", [paint_s], most=ANSWER_S),
        record.emit(f"{what}: rows and devices in Chromium", [rows_s]),
    ]


def measure_requests(served: Served, requests: int) -> list[dict[str, object]]:
    """Commands to a run that has ended: each is refused, and nothing is written."""
    body = json.dumps({"run": "ended0000", "kind": "command_requested", "body": {"command": "pause"}})
    headers = served.owner | {"Content-Type": "application/json"}

    def send(_sender: int) -> Counter[int]:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
        counts: Counter[int] = Counter()
        for _ in range(requests // SENDERS):
            connection.request("POST", "/api/request", body, headers)
            answer = connection.getresponse()
            answer.read()
            counts[answer.status] += 1
        return counts

    began_s = time.monotonic()
    with ThreadPoolExecutor(SENDERS) as pool:
        counts = sum(pool.map(send, range(SENDERS)), Counter())
    took_s = time.monotonic() - began_s
    print(f"# answers: {dict(counts)}")
    return [record.emit(f"{requests:,} requests of {SENDERS} senders", [took_s])]


if __name__ == "__main__":
    main()
