"""Starts programs by forking a process that has imported torch, because the import takes longer than a small training.

`interpreter()` is a command that stands for the interpreter of the tests, or for another one, such as that of vLLM.
`COMMAND -m MODULE` and `COMMAND FILE` run in a fork of the server, anything else in the interpreter itself. What the
program does is real, and so are its arguments, files, folder, environment, signals and exit code. How its process comes
about is not: the fork is no child of the command, it has one OpenMP thread, and its imports are done. So a test of
those starts the interpreter. torchrun takes the command for its ranks from PYTHON_EXEC, and a trainer of a supervisor
from `variables()`. Outside of the tests, as in a benchmark, the command is the interpreter.

One server serves every worker of a test session. It is a child of none of them, and ends with the last one.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

_MODULES = (
    *(
        "prime_train.cli.app",
        "prime_train.cli.run.command",
        "prime_train.cli.run.spot",
        "prime_train.cli.run.slurm",
        "prime_train.cli.status",
        "prime_train.cli.estimate.command",
    ),
    *("prime_train.supervise.core.loop", "prime_train.programs.bundled", "prime_train.views.run.report"),
    *("prime_train.trainer.loops.pretrain", "prime_train.trainer.loops.grpo"),
    *("torch.distributed.checkpoint.state_dict", "torch.distributed.launcher.api"),
)
_HOOKS = Path(__file__).with_name("fork_hooks")
_HOLD = b"hold"
_MESSAGE_BYTES = 2**17
_COMMAND = """#!{own} -IS
import contextlib, json, os, signal, socket, sys
arguments = [argument for argument in sys.argv[1:] if argument != "-u"] if sys.argv[1:2] == ["-u"] else sys.argv[1:]
if arguments[0] != "-m" and arguments[0].startswith("-"):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({path!r})
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: server.send(bytes([number])))
    request = {{"argv": arguments, "cwd": os.getcwd(), "environment": dict(os.environ)}}
    socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
    code = int(server.recv(16))
if code < 0:
    with contextlib.suppress(OSError):  # SIGKILL has no other action
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@functools.cache
def interpreter(python: str = sys.executable, modules: tuple[str, ...] = _MODULES) -> str:
    """The path of the command. Its server has imported `modules`, and lives as long as this process, or longer."""
    if "PYTEST_VERSION" not in os.environ:
        return python
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    name = f"prime-train-forks-{os.getuid()}-{session[:12]}-{zlib.crc32(python.encode()):08x}"
    folder = Path(tempfile.gettempdir()) / name
    folder.mkdir(mode=0o700, exist_ok=True)
    command, path = folder / "python", folder / "socket"
    with open(folder / "lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = _hold(path)
        if held is None:
            _start([python, "-m", __name__], modules, path, folder / "log")
            held = _hold(path)
            assert held is not None, (folder / "log").read_text(encoding="utf-8")
            command.write_text(_COMMAND.format(own=sys.executable, python=python, path=str(path)), encoding="utf-8")
            command.chmod(command.stat().st_mode | stat.S_IXUSR)
    atexit.register(held.close)  # keeps it open until then
    return str(command)


def is_first(name: str) -> bool:
    """Whether no process of this session has asked for the name before. Outside of the tests it is always the first."""
    command = Path(interpreter())
    if command == Path(sys.executable):
        return True
    try:
        command.with_name(f"asked-{zlib.crc32(os.fsencode(name)):08x}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def variables(first_attempt: int = 1) -> dict[str, str]:
    """The variables with which `prime-train run` has the trainers of its attempts forked, from one attempt on.

    A test that harms the trainer of an attempt lets those fork that are not harmed.
    """
    folders = (str(_HOOKS), os.environ.get("PYTHONPATH", ""))
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        "FORK_COMMAND": interpreter(),
        "FORK_FROM_ATTEMPT": str(first_attempt),
    }


def _hold(path: Path) -> socket.socket | None:
    """A connection that keeps the server alive; None if there is no server."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.suppress(OSError):
        connection.connect(str(path))
        connection.send(_HOLD)
        if connection.recv(len(_HOLD)) == _HOLD:
            return connection
    connection.close()
    return None


def _start(program: Sequence[str], modules: Sequence[str], path: Path, log: Path) -> None:
    """Start a server. It answers when its imports are done."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening, open(log, "wb") as output:
        listening.bind(str(path))
        listening.listen(64)
        subprocess.run(
            [*program, str(listening.fileno()), *modules],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            cwd=Path(__file__).parents[1],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[listening.fileno()],
            start_new_session=True,
            check=True,
        )


# --- the server ----------------------------------------------------------------------------------------


def _serve(listening: socket.socket) -> list[str]:
    """Fork for each request until nobody holds the server. Returns in the fork, with its arguments."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no fork of this process is waited for
    holding: set[socket.socket] = set()
    while True:
        ready, _, _ = select.select([listening, *holding], [], [])
        for gone in holding.intersection(ready):
            holding.remove(gone)
            gone.close()
            if not holding:
                shutil.rmtree(Path(listening.getsockname()).parent)
                sys.exit()
        if listening not in ready:
            continue
        caller, _ = listening.accept()
        message, files, _, _ = socket.recv_fds(caller, _MESSAGE_BYTES, 3)
        if message == _HOLD:
            caller.send(_HOLD)
            holding.add(caller)
        elif message and os.fork() == 0:
            for connection in (listening, *holding):
                connection.close()
            return _become(message, files, caller)
        else:
            for file in (*files, caller.detach()):
                os.close(file)


def _become(message: bytes, files: list[int], caller: socket.socket) -> list[str]:
    """Fork once more, and take over files, folder and environment of the caller. The first fork reports the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    program = os.fork()
    if program:
        for file in files:
            os.close(file)
        _report_end(program, caller)
    caller.close()
    request = json.loads(message)
    os.setsid()
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:0] = [request["cwd"], *folders]
    return [str(argument) for argument in request["argv"]]


def _report_end(program: int, caller: socket.socket) -> NoReturn:
    """Pass signals on, and report the exit code; negative is a signal. The program is killed if its caller is.

    What it leaves in its group is killed, too: a child that was forked does not see the end of its parent as one does
    that was started.
    """
    ended = os.pidfd_open(program)
    with contextlib.suppress(OSError):
        while ended not in select.select([ended, caller.fileno()], [], [])[0]:
            number = caller.recv(1)
            os.kill(program, number[0] if number else signal.SIGKILL)
            if not number:
                break
    os.waitid(os.P_PID, program, os.WEXITED | os.WNOWAIT)  # not reaped yet, its group keeps its number
    with contextlib.suppress(ProcessLookupError):  # it was killed before it had a group
        os.killpg(program, signal.SIGKILL)
    _, status = os.waitpid(program, 0)
    with contextlib.suppress(OSError):
        caller.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _main(descriptor: str, *modules: str) -> None:
    if os.fork():
        os._exit(0)
    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # a collection in a fork would write to every page
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: a fork would have one of them"
    sys.argv = _serve(socket.socket(fileno=int(descriptor)))
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    _main(*sys.argv[1:])
