from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from prime_train.core.http import API_KEY
from prime_train.core.rundir import RunDir
from prime_train.programs.vllm import program as vllm
from prime_train.spec import ENDLESS_STEPS, Data, Run, RunSpec
from prime_train.spec.server import Server
from prime_train.supervise.launch import environment, guard
from prime_train.supervise.launch.program import to_json

RUN_DIR = RunDir(Path("/runs/a"))


def run(server: Server | None) -> RunSpec:
    return RunSpec(run=Run(name="a", kind="serve", max_steps=ENDLESS_STEPS), data=Data(sources=()), server=server)


def arguments(server: Server) -> list[str]:
    argv = vllm.plan(run(server), RUN_DIR, 2).argv
    assert argv[5:7] == ("-m", "vllm.entrypoints.openai.api_server")
    return list(argv[7:])


def test_what_the_config_leaves_open_is_left_to_vllm() -> None:
    launch = vllm.plan(run(Server(model="/models/m")), RUN_DIR, 2)
    assert launch.argv[4] == sys.executable
    assert arguments(Server(model="/models/m")) == (
        ["--model", "/models/m", "--host", "127.0.0.1", "--port", "8000", "--dtype", "auto"]
    )
    assert launch.role == "inference"
    assert launch.log == Path("/runs/a/attempts/002/inference.log")


def test_everything_the_config_states_becomes_an_argument() -> None:
    server = Server(
        model="owner/name",
        served_name="m",
        port=9001,
        ctx_tokens=4096,
        dtype="bfloat16",
        tensor_parallel=2,
        gpu_memory_fraction=0.8,
        kv_cache_gib=1.5,
        enforce_eager=True,
        arguments={"quantization": "fp8", "max_num_seqs": 4, "enable-lora": True, "async_scheduling": False},
    )
    told = " ".join(arguments(server))
    assert told == (
        "--model owner/name --host 127.0.0.1 --port 9001 --dtype bfloat16 --served-model-name m --max-model-len 4096 "
        "--tensor-parallel-size 2 --gpu-memory-utilization 0.8 --kv-cache-memory-bytes 1610612736 --enforce-eager "
        "--quantization=fp8 --max-num-seqs=4 --enable-lora --no-async-scheduling"
    )


def test_a_value_with_a_dash_in_front_is_no_argument_of_its_own() -> None:
    assert "--chat-template=--trust-remote-code" in arguments(
        Server(model="m", arguments={"chat_template": "--trust-remote-code"})
    )


def test_it_is_ready_when_it_answers_under_the_name_that_requests_use() -> None:
    ready = vllm.plan(run(Server(model="/models/m", served_name="m", host="::1", ready_limit_s=60.0)), RUN_DIR, 1).ready
    assert ready is not None
    assert ready.health_url == "http://[::1]:8000/health"
    assert ready.completion_url == "http://[::1]:8000/v1/completions"
    assert (ready.model, ready.limit_s) == ("m", 60.0)


def test_the_interpreter_is_the_one_that_the_config_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert vllm.plan(run(Server(model="m", python="~/venv/bin/python")), RUN_DIR, 1).argv[4] == (
        f"{tmp_path}/venv/bin/python"
    )


def test_it_runs_below_a_guard_that_ends_its_engine_with_the_supervisor() -> None:
    *interpreter, guard = vllm.plan(run(Server(model="m")), RUN_DIR, 1).argv[:4]
    assert interpreter == [sys.executable, "-I", "-S"]
    assert "PR_SET_PDEATHSIG" in Path(guard).read_text(encoding="utf-8")


def test_a_key_reaches_neither_the_arguments_nor_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY, "sk-0123456789abcdef")
    launch = vllm.plan(run(Server(model="m")), RUN_DIR, 1)
    assert "sk-0123456789abcdef" not in f"{launch} {to_json(launch)}"


def test_launch_json_states_what_it_waits_for() -> None:
    written = json.loads(to_json(vllm.plan(run(Server(model="m")), RUN_DIR, 1)))
    assert written["ready"]["health_url"] == "http://127.0.0.1:8000/health"


def test_a_run_without_a_server_has_no_plan() -> None:
    with pytest.raises(ValueError, match="no \\[inference\\]"):
        vllm.plan(replace(run(None)), RUN_DIR, 1)


def test_a_guard_ends_everything_with_a_supervisor_of_many_threads() -> None:
    """The kernel signals it once for each thread of the supervisor that ends. Before, it takes the signal from others,
    as Slurm sends it, for none of its own."""
    guard = vllm.plan(run(Server(model="m")), RUN_DIR, 1).argv[:4]
    tree = "for n in 1 2 3 4 5 6 7 8; do (sleep 600 & sleep 600 & wait) & done; echo begun; wait"
    program = (
        "import os, subprocess, sys, threading, time\n"
        "for _ in range(20):\n"
        "    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        f"marked = os.environ | {{{environment.SUPERVISOR!r}: f'{{os.getpid()}}:0'}}\n"
        f"guard = subprocess.Popen([*{guard!r}, 'bash', '-c', {tree!r}], env=marked, start_new_session=True,"
        " stdout=subprocess.PIPE)\n"
        "guard.stdout.readline()\n"
        "print(guard.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        found = psutil.Process(int(supervisor.stdout.readline()))
        begun = [found, *found.children(recursive=True)]
        assert len(begun) > 9
        for _ in range(20):
            found.send_signal(signal.SIGUSR1)
        assert all(process.is_running() for process in begun)
        supervisor.kill()
    _, left = psutil.wait_procs(begun, timeout=30)
    assert [process.pid for process in left if process.status() != psutil.STATUS_ZOMBIE] == []


def test_a_guard_looks_through_a_process_of_which_only_threads_are_left() -> None:
    """Its first thread has ended, so it counts as a zombie, and its child is still its child."""
    program = (
        "import ctypes, subprocess, threading, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "print(child.pid, flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        give_up_s = time.monotonic() + 30
        while psutil.Process(parent.pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < give_up_s
            time.sleep(0.01)
        found = guard.list_below(os.getpid())
        parent.kill()
        os.kill(child, signal.SIGKILL)
    assert {child, parent.pid} <= set(found)
    assert parent.pid not in guard.list_below(os.getpid())
