"""`prime-train control --bus nats` with real agents and runs: their rows, commands, kills, and strangers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from prime_train.bus.base import BusError
from prime_train.bus.credentials import Credentials, read_credentials
from prime_train.bus.nats import NatsBus
from prime_train.bus.server_folder import CONTROLLER, credentials_file, read_address, server_folder
from prime_train.core.errors import ExitCode
from tests.system.bus.stand import standing_nats
from tests.system.control.served import Served, serve
from tests.unit.cli.commands import PROGRAM, clean_environment, prime_train, wait_until

pytest.importorskip("sse_starlette", reason="the extra `control` is not installed")
pytest.importorskip("nats", reason="the extra `control` is not installed")
LIMIT_S = 120.0
SECRET = "hf_" + "a" * 34
SCRIPT = """
import os, sys, time
from prime_train import live

print("key", os.environ["HF_TOKEN"], flush=True)
first = not os.path.exists("failed")
for step in range(100_000):
    time.sleep(0.02)
    live.step(step + 1, loss=1.0)
    if first and step == 20:
        open("failed", "w").close()
        sys.exit("the disk is on fire")
    if live.should_stop():
        break
"""


@contextmanager
def running(folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`prime-train run` of SCRIPT in a folder."""
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    command = [str(PROGRAM), "run", "--run-name", "demo", *words, "--", sys.executable, "train.py"]
    environment = clean_environment() | {"HF_TOKEN": SECRET}
    with open(folder / "output", "ab") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(LIMIT_S)


def document(served: Served) -> dict[str, Any]:
    return served.get("/api/state").document


def row(served: Served, name: str) -> dict[str, Any]:
    found: dict[str, Any] = document(served)["runs"].get(name, {})
    return found


def as_machine(folder: Path, name: str, password: str | None = None) -> NatsBus:
    bus_folder = server_folder(folder / "runs")
    found = read_credentials(read_address(bus_folder), str(credentials_file(bus_folder, name)), None, {})
    if password is not None:
        found = Credentials(found.host, found.port, name, password)
    return NatsBus(found, "test")


def server_pid(served: Served) -> int:
    """The nats-server that the controller started."""
    children = Path(f"/proc/{served.process.pid}/task").glob("*/children")
    pids = [int(pid) for path in children for pid in path.read_text().split()]
    found = [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == "nats-server"]
    assert len(found) == 1, found
    return found[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
    return tmp_path / "own"


def test_runs_of_two_machines_are_shown_obey_and_survive_the_controller(folder: Path) -> None:
    other = folder.parent / "other"
    with serve(folder, 0, "--bus", "nats", "--add-machine", "m2") as served:
        found = json.loads(json.dumps(served.bus))
        assert found["machines"]["m2"].endswith("credentials/m2.json")
        on_bus = ("--bus", found["address"], "--set", f"prime_train.bus.credentials_file={found['machines']['m2']}")
        (folder / "failed").touch()
        with running(other, *on_bus) as second, running(folder, "--bus", "nats") as first:
            wait_until(lambda: row(served, "m2/demo").get("restarts") == 1 or second.poll() is not None)
            wait_until(lambda: row(served, "m2/demo")["step"] > 5)
            wait_until(lambda: row(served, "demo").get("step", 0) > 5)
            assert row(served, "m2/demo")["state"] == "running"
            assert list(document(served)["runs"]) == ["demo", "m2/demo"]
            (failure,) = document(served)["failures"]["m2/demo"]
            assert failure["recovered_s"] > 0
            log = served.get("/api/log?name=m2/demo&attempt=1&lines=few").document
            assert "the disk is on fire" in "\n".join(log["lines"])
            assert SECRET not in json.dumps(log)
            assert 'prime_train_run_state{run="m2/demo",state="running"} 1' in served.get("/metrics").text
            top = json.loads(prime_train("top", "--once", "--json", "--bus", "nats", cwd=folder).stdout)
            assert {name: one["supervised"] for name, one in top["runs"].items()} == {"demo": True, "m2/demo": True}

            served.process.send_signal(signal.SIGKILL)
            served.process.wait(LIMIT_S)
            with serve(folder, served.port, "--bus", "nats") as again:
                assert again.bus["address"] == found["address"]
                wait_until(lambda: row(again, "m2/demo").get("step", 0) > 0)
                assert document(again)["failures"]["m2/demo"] == [failure]
                pid = server_pid(again)
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda: "is not reached" in document(again)["controller"]["remark"])
                wait_until(lambda: document(again)["controller"]["remark"] == "")
                assert server_pid(again) != pid
                step = row(again, "m2/demo")["step"]
                wait_until(lambda: row(again, "m2/demo")["step"] > step)

                setting = {"values": {"optim.lr": 1.0}, "expected": 0, "by": "ada", "why": ""}
                refused = again.send({"run": "m2/demo", "kind": "settings_requested", "body": setting}).document
                assert refused["outcome"] == "refused"
                stop = {"run": "m2/demo", "kind": "stop_requested", "id": "stop1"}
                assert again.send(stop).document["outcome"] == "accepted"
                assert again.send(stop).document["outcome"] == "accepted"
                assert second.wait(LIMIT_S) == ExitCode.RESUMABLE
                wait_until(lambda: row(again, "m2/demo")["state"] == "stopped")
                assert row(again, "demo")["state"] == "running"
                detail = again.get("/api/run?name=m2/demo").document
                assert {one["id"]: one["outcome"] for one in detail["commands"]}["stop1"] == "accepted"
                assert first.poll() is None


def test_machines_come_and_go_and_strangers_are_refused_and_reported(folder: Path) -> None:
    with serve(folder, 0, "--bus", "nats", "--add-machine", "m1") as served:
        done = prime_train("control", "--add-machine", "m2", cwd=folder)
        assert done.returncode == 0, done.stderr
        path = credentials_file(server_folder(folder / "runs"), "m2")
        assert str(path) in done.stdout
        assert json.loads(path.read_text())["password"] not in done.stdout + done.stderr
        m2 = as_machine(folder, "m2")
        assert m2.wait_connected(LIMIT_S)
        m2.publish("pt.demo.r.m2.hb", {"state": "train", "step": 3}, "b1")
        wait_until(lambda: row(served, "m2/demo").get("state") == "running")
        for subject in ("pt.demo.r.m1.hb", "pt.demo.cmd.m1"):
            m2.publish(subject, {"state": "died", "kind": "stop", "body": {}}, "b2")
        wait_until(lambda: 'user:m2" - Publish Violation' in document(served)["controller"]["remark"])
        with pytest.raises(BusError):
            m2.kv("pt_fleet").get("demo.m2")
        stranger = as_machine(folder, "m1", "a guess")
        wait_until(lambda: "authentication error" in document(served)["controller"]["remark"])
        assert list(document(served)["runs"]) == ["m2/demo"]
        assert prime_train("control", "--remove-machine", "m2", cwd=folder).returncode == 0
        wait_until(lambda: not m2.wait_connected(0.0))
        m2.close()
        stranger.close()


def test_a_controller_connects_with_a_server_that_runs(folder: Path) -> None:
    with standing_nats(folder.parent / "bus") as stand:
        address = stand.server.address
        file = {name: str(credentials_file(stand.folder, name)) for name in (CONTROLLER, "m1")}
        with serve(folder, 0, "--bus", address, "--bus-credentials", file[CONTROLLER]) as served:
            machine = stand.client("m1")

            def is_shown() -> bool:
                machine.publish("pt.demo.r.m1.hb", {"state": "train", "step": 3}, "b1")
                return "m1/demo" in document(served)["runs"]

            wait_until(is_shown)
        wrong = prime_train("control", "--port", "0", "--bus", address, cwd=folder)
        assert "the server refuses these credentials" in wrong.stderr
        words = ("control", "--port", "0", "--bus", address, "--bus-credentials", file["m1"])
        assert "m1 may not read what is known about machines" in prime_train(*words, cwd=folder).stderr
        port = address.rpartition(":")[2]
        taken = prime_train("control", "--port", "0", "--bus", "nats", "--bus-port", port, cwd=folder)
        assert (taken.returncode, "address already in use" in taken.stderr) == (ExitCode.OUT_OF_REACH, True)
    words = ("control", "--port", "0", "--bus", address, "--bus-credentials", file[CONTROLLER])
    gone = prime_train(*words, cwd=folder)
    assert (gone.returncode, "the bus server is not reached" in gone.stderr) == (ExitCode.OUT_OF_REACH, True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("control", "--add-machine", "m1"), "no bus server was started here"),
        (("control", "--bus", "nats", "--add-machine", "controller"), "has the rights of the controller"),
        (("control", "--bus", "nats", "--add-machine", "../m1"), "is no name for a machine"),
        (("control", "--bus", "nats", "--bus-host", "0.0.0.0"), "give the address by which other machines reach it"),
        (("control", "--bus", "nats://example.org"), "has no TLS"),
        (("control", "--bus", "local", "--bus-port", "5"), "leave them out"),
        (("control", "--remove-machine", "m1"), "m1 has no credentials"),
        (("top", "--once", "--bus", "nats"), "no bus server was started here"),
        (("run", "--dry-run", "--bus", "nats", "--", "true"), "no bus server was started here"),
    ],
)
def test_what_cannot_be_is_refused_in_four_parts(folder: Path, words: tuple[str, ...], expected: str) -> None:
    done = prime_train(*words, cwd=folder)
    assert done.returncode in (ExitCode.USAGE, ExitCode.OUT_OF_REACH), done.stderr
    assert expected in done.stderr
    for part in ("what", "why", "fix"):
        assert part in done.stderr
    assert not list(folder.glob("runs/*"))[:1] or not (folder / "runs" / ".control" / "bus" / "credentials").exists()
