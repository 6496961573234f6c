"""Starts vLLM servers by forking a process that has imported vLLM. An import takes longer than the rest of a start.

The interpreter of vLLM runs `fork_server.py SOCKET`, which prints a line when it listens. `write_interpreter` writes a
command in place of that interpreter: `COMMAND -m MODULE ...` runs the module in a fork, anything else in the
interpreter itself. What the module does is real: arguments, configuration, engine core, worker. How its processes come
about is not: engine core and worker are forked instead of spawned, and the fork is no child of the run that asked for
it. So a test of the processes needs the interpreter.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import multiprocessing
import multiprocessing.context
import os
import runpy
import select
import signal
import socket
import stat
import sys
from pathlib import Path
from typing import Any, NoReturn

_IMPORTED = (
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.launchers.render.entry",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
)
_COMMAND = """#!{own} -IS
import json, os, socket, sys
if sys.argv[1:2] != ["-m"]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({path!r})
    request = {{"argv": sys.argv[2:], "cwd": os.getcwd(), "environment": dict(os.environ)}}
    socket.send_fds(server, [json.dumps(request).encode() + b"\\n"], [0, 1, 2])
    sys.exit(int(server.recv(16)))
"""


def write_interpreter(path: Path, python: str, listening: Path) -> None:
    """Write the command that has a module forked by the server that listens there."""
    path.write_text(_COMMAND.format(own=sys.executable, python=python, path=str(listening)), encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def serve(listening: socket.socket) -> list[str]:
    """Fork for each request until stdin ends. Returns in the fork, with its command line."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no fork of this process is waited for
    with listening:
        while True:
            ready, _, _ = select.select([listening, sys.stdin], [], [])
            if sys.stdin in ready:
                sys.exit()
            caller, _ = listening.accept()
            if os.fork() == 0:
                break
            caller.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, files, _, _ = socket.recv_fds(caller, 2**20, 3)
    while not text.endswith(b"\n"):
        text += caller.recv(2**20)
    server = os.fork()
    if server:
        await_end(server, caller)
    caller.close()
    return become(json.loads(text), files)


def await_end(server: int, caller: socket.socket) -> NoReturn:
    """Report the exit code of the fork to its caller, and end what it left. It ends with its caller, too."""
    ready, _, _ = select.select([os.pidfd_open(server), caller.fileno()], [], [])
    if caller.fileno() in ready:  # it is gone, because it sends nothing more
        os.kill(server, signal.SIGKILL)
    os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)  # not reaped yet, its group keeps its number
    with contextlib.suppress(ProcessLookupError):  # it was killed before it had a group
        os.killpg(server, signal.SIGKILL)
    _, status = os.waitpid(server, 0)
    with contextlib.suppress(OSError):
        caller.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def become(request: Any, files: list[int]) -> list[str]:
    """Take over what the caller has: files, folder, environment, and the folders of its modules."""
    os.setsid()
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return [str(argument) for argument in request["argv"]]


if __name__ == "__main__":
    own = socket.socket(socket.AF_UNIX)
    own.bind(sys.argv[1])
    own.listen()
    print("listens", flush=True)  # noqa: T201 - for its starter; requests wait for the imports
    for name in _IMPORTED:
        importlib.import_module(name)
    # On a CPU vLLM chooses to spawn, whatever its settings.
    multiprocessing.context._concrete_contexts["spawn"] = multiprocessing.get_context("fork")  # type: ignore[attr-defined]
    gc.freeze()  # a collection in a fork would write to every page
    sys.argv = serve(own)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
