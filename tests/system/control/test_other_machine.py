"""A run on another machine has on the page what a run in the folder has: with real agents, supervisors and a server."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prime_train.bus.fleet_store import BUCKET, DRAINED
from prime_train.bus.server_folder import CONTROLLER
from tests.system.control.served import Served, serve
from tests.system.control.test_bus import LIMIT_S, as_machine, document, row
from tests.system.programs.command.commands import Supervised
from tests.unit.cli.commands import wait_until

pytest.importorskip("sse_starlette", reason="the extra `control` is not installed")
pytest.importorskip("nats", reason="the extra `control` is not installed")
SCRIPT = """
import json, os, sys, time
from prime_train import live

path = live.resume_path()
first = json.load(open(path + "/state.json")) if path else 0
for step in range(first, 100_000):
    rate = live.settings(step).get("lr", 0.5)
    live.step(step + 1, loss=9.0 if rate > 0.3 and step >= 80 else 2.0 + 0.01 * (step % 7))
    live.phase("rest")  # each step is reported at once then
    stops = live.should_stop()
    if stops or live.should_save() or (step + 1) % 20 == 0:
        folder = f"out/step_{step + 1}"
        os.makedirs(folder, exist_ok=True)
        json.dump(step + 1, open(folder + "/state.json", "w"))
        live.checkpoint(folder, step + 1)
    if stops:
        sys.exit(0)
    if step == 30 and not path:
        os.makedirs("runs/demo/attempts/001/evidence", exist_ok=True)
        open("runs/demo/attempts/001/evidence/stacks-trainer-7.txt", "w").write("MainThread: all_reduce (nccl.py:7)")
        os.makedirs("runs/demo/profile", exist_ok=True)
        open("runs/demo/profile/part", "wb").write(os.urandom(3 << 20))
        os.rename("runs/demo/profile/part", "runs/demo/profile/step_30.trace.json.gz")
        sys.exit("the disk is on fire")
    time.sleep(0.02)
"""
CONFIG = """
[run]
name = "demo"
kind = "command"
[command]
argv = ["python", "train.py"]
[[command.settings]]
name = "lr"
value = 0.5
min = 0.01
[prime_train.restart]
backoff_s = 0.1
[prime_train.bus]
url = "{address}"
credentials_file = "{file}"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
    return tmp_path / "own"


def start(folder: Path, served: Served) -> Supervised:
    (folder / "train.py").write_text(SCRIPT)
    bus = served.bus
    (folder / "demo.toml").write_text(CONFIG.format(address=bus["address"], file=bus["machines"]["m2"]))
    return Supervised(folder, "demo.toml")


def detail(served: Served) -> dict[str, Any]:
    return served.get("/api/run?name=m2/demo").document


def give(served: Served, command: str, kind: str = "command_requested", run: str = "m2/demo", **more: Any) -> Any:
    body = {"command": command, "by": "ada"} | more
    return served.send({"run": run, "kind": kind, "body": body}).document


def keys(folder: Path, bucket: str) -> list[str]:
    bus = as_machine(folder, CONTROLLER)
    assert bus.wait_connected(LIMIT_S)
    try:
        return [entry.key for entry in bus.kv(bucket).list_entries()]
    finally:
        bus.close()


def until_shown(supervised: Supervised, holds: Callable[[], bool]) -> None:
    wait_until(lambda: supervised.process.poll() is not None or holds())
    assert supervised.process.poll() is None, supervised.process.communicate()


def pins(served: Served) -> dict[int, bool]:
    return {one["step"]: one["pinned"] for one in detail(served)["checkpoints"]["checkpoints"]}


def test_what_a_run_in_the_folder_can_is_there_on_another_machine(folder: Path) -> None:
    other = folder.parent / "other"
    with serve(folder, 0, "--bus", "nats", "--add-machine", "m2") as served:
        supervised = start(other, served)
        try:
            until_shown(supervised, lambda: (row(served, "m2/demo").get("proposal") or {}).get("change") == "lr = 0.25")
            assert "pinned" in give(served, "pin", step=20)["what"]
            assert (other / "out/step_20/PINNED").exists()
            # Saves are looked for from time to time, so that of step 40 may come after the proposal.
            wait_until(lambda: pins(served).get(20) is True and 40 in pins(served))
            assert not pins(served)[40]
            assert give(served, "pin", step=19)["outcome"] == "refused"

            assert give(served, "accept", step=1)["outcome"] == "accepted"
            wait_until(lambda: row(served, "m2/demo")["proposal"] is None)
            wait_until(
                lambda: any(one["before"] == {"lr": 0.5} for one in detail(served)["settings"] if "before" in one)
            )
            setting = {"values": {"lr": 0.5}, "expected": 1, "why": "back to before version 1", "by": "ada"}
            back = {"run": "m2/demo", "kind": "settings_requested", "id": "back1", "body": setting}
            assert served.send(back).document["outcome"] == "accepted"
            assert served.send(back).document["outcome"] == "accepted"
            wait_until(lambda: detail(served)["settings"][-1].get("before") == {"lr": 0.25})
            assert len(detail(served)["settings"]) == 2, "a repeated id acts once"
            values = detail(served)["values"]
            assert (values["lr"], values["prime_train.instability.policy"]) == (0.5, "propose")

            wait_until(lambda: read_log(served).get("evidence") is not None)
            wait_until(lambda: [one["ready"] for one in detail(served)["traces"]] == [True])
            trace = (other / "runs/demo/profile/step_30.trace.json.gz").read_bytes()
            supervised.process.send_signal(signal.SIGTERM)
            supervised.await_end()
        finally:
            supervised.kill()
        wait_until(lambda: row(served, "m2/demo")["state"] == "stopped")
        shutil.rmtree(other)  # the machine is gone
        served.process.send_signal(signal.SIGKILL)
        served.process.wait(LIMIT_S)
    with serve(folder, served.port, "--bus", "nats") as again:
        wait_until(lambda: "m2/demo" in document(again)["runs"])
        found = read_log(again)
        assert "the disk is on fire" in "\n".join(found["lines"])
        stacks = {"name": "stacks-trainer-7.txt", "lines": ["MainThread: all_reduce (nccl.py:7)"]}
        assert found["evidence"] == [stacks]
        address = "/api/trace?name=m2/demo&trace=step_30.trace.json.gz"
        answer = again.ask("GET", address, again.viewer)
        assert answer.text.encode(errors="surrogateescape") == trace
        assert "attachment" in answer.headers["content-disposition"]
        assert again.get("/api/trace?name=m2/demo&trace=step_31.trace.json.gz").status == 404


def read_log(served: Served) -> dict[str, Any]:
    return served.get("/api/log?name=m2/demo&attempt=1&lines=few").document


def test_a_machine_is_drained_and_comes_back_with_its_history(folder: Path) -> None:
    with serve(folder, 0, "--bus", "nats", "--add-machine", "m2") as served:
        supervised = start(folder.parent / "other", served)
        try:
            until_shown(supervised, lambda: row(served, "m2/demo").get("restarts") == 1)
            wait_until(lambda: row(served, "m2/demo").get("newest_complete") is not None)
            wait_until(lambda: "m2" in document(served)["machines"] and row(served, "m2/demo")["state"] == "running")
            failures = document(served)["failures"]["m2/demo"]
            unknown = give(served, "drain", "machine_requested", "m3")
            assert "no run to drain on m3" in unknown["error"]["what"]
            assert "two" in give(served, "dance", "machine_requested", "m2")["error"]["why"]
            answer = give(served, "drain", "machine_requested", "m2")
            assert answer["outcome"] == "accepted", answer
            assert "testing cpu" in answer["what"]
            wait_until(lambda: "m2" not in document(served)["machines"])
            wait_until(lambda: (keys(folder, BUCKET), keys(folder, DRAINED)) == ([], ["demo.m2"]))
            tested = "cpu passed"
            wait_until(lambda: any(tested in entry["text"] for entry in detail(served)["entries"]))
            wait_until(lambda: row(served, "m2/demo")["state"] == "paused")
            assert row(served, "m2/demo")["drained"]
            served.process.send_signal(signal.SIGKILL)
            served.process.wait(LIMIT_S)
            with serve(folder, served.port, "--bus", "nats") as again:
                wait_until(lambda: row(again, "m2/demo").get("drained") is True)
                assert "m2" not in document(again)["machines"]
                assert give(again, "return", "machine_requested", "m2")["outcome"] == "accepted"
                wait_until(lambda: row(again, "m2/demo")["state"] == "running" and "m2" in document(again)["machines"])
                assert not row(again, "m2/demo")["drained"]
                assert (keys(folder, BUCKET), keys(folder, DRAINED)) == (["demo.m2"], [])
                kept = document(again)["failures"]["m2/demo"]
                assert [one["time_s"] for one in kept[: len(failures)]] == [one["time_s"] for one in failures]
                assert "error" in give(again, "return", "machine_requested", "m2")
        finally:
            supervised.process.send_signal(signal.SIGTERM)
            supervised.await_end()
            supervised.kill()
