"""Starts jax.distributed so that a rank that fails ends all ranks at once, and SIGTERM saves.

    from prime_train import jax as prime_jax

    prime_jax.initialize()

With JAX alone (0.10.2) a rank with a traceback waits in the exit barrier for minutes, and so do all others; SIGTERM is
swallowed by the preemption notifier. `python -m prime_train.jaxrun script.py` does this for a script as it is. Runs in
the interpreter of the training: standard library, jax, and `live`.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import signal
import socket
import sys
import threading
from types import TracebackType
from typing import Any

import jax
from jax.experimental import multihost_utils

from prime_train import live

INITIALIZATION_S = 600  # an allocation may start its processes minutes apart
HEARTBEAT_S = 120  # longer than a pause for compilation or for a loaded file system
SHUTDOWN_S = 30  # a rank that ends waits so long for the others
_ORBAX_S = 60.0  # for a save that is under way; without the others its barrier may never come
_UNASKED_S = 10.0  # a script that asks does so after its first step
_TERMINATED = 128 + signal.SIGTERM

_start = jax.distributed.initialize  # `jaxrun` replaces it for the script
_asked = threading.Event()  # the script asks whether to save, so SIGTERM has an answer
_notify = ctypes.c_void_p()  # the handler of the preemption notifier


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: Any = None,
    **options: Any,
) -> None:
    """jax.distributed.initialize with short waits, SIGTERM that saves, and an end of all ranks with the first failure.

    Without arguments they come from JAX_COORDINATOR_ADDRESS or MASTER_ADDR and MASTER_PORT, WORLD_SIZE and RANK, else
    from the cluster that JAX detects. Raises what JAX raises.
    """
    options.setdefault("initialization_timeout", INITIALIZATION_S)
    options.setdefault("heartbeat_timeout_seconds", HEARTBEAT_S)
    options.setdefault("shutdown_timeout_seconds", SHUTDOWN_S)
    given = os.environ
    if coordinator_address is None and "MASTER_ADDR" in given and "MASTER_PORT" in given:
        port = _agree_on_port() if given.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else given["MASTER_PORT"]
        coordinator_address = f"{given['MASTER_ADDR']}:{port}"
    if num_processes is None and given.get("WORLD_SIZE", "").isdecimal():
        num_processes = int(given["WORLD_SIZE"])
    if process_id is None and given.get("RANK", "").isdecimal():
        process_id = int(given["RANK"])
    _start(coordinator_address, num_processes, process_id, local_device_ids, **options)
    live.set_rank(jax.process_index(), jax.process_count(), should_stop)
    _record_questions()
    _take_sigterm()
    sys.excepthook = functools.partial(_end_all_ranks, sys.excepthook)


def _agree_on_port() -> str:
    """A port for the coordinator. torchrun itself listens on MASTER_PORT, and JAX would end by a segmentation fault."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    given = os.environ
    store = TCPStore(given["MASTER_ADDR"], int(given["MASTER_PORT"]), is_master=False)
    # A restart of the workers by torchrun keeps the store, and with it the port of the processes that have ended.
    key = f"prime_train/jax/{given.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if given["RANK"] == "0":
        with socket.socket() as found:
            found.bind(("", 0))
            store.set(key, str(found.getsockname()[1]))
    return bytes(store.get(key)).decode()


def should_stop(step: int, *, asked_to: bool) -> bool:
    """Whether to save and end at `step`: True at the same step on every rank. `live.should_stop` calls it.

    `asked_to`: this rank has a request that came without a signal. JAX runs ahead of its devices, so the ranks agree
    through its coordination service, which waits for nothing.
    """
    _asked.set()
    if asked_to:
        _tell_notifier()
    return bool(multihost_utils.reached_preemption_sync_point(step))


def _record_questions() -> None:
    """Notice a script or an Orbax manager that asks JAX itself whether to save."""
    ask = multihost_utils.reached_preemption_sync_point

    @functools.wraps(ask)
    def ask_and_record(*args: Any, **options: Any) -> Any:
        _asked.set()
        return ask(*args, **options)

    multihost_utils.reached_preemption_sync_point = ask_and_record


def _take_sigterm() -> None:
    """Put a handler before that of the notifier, which only sets a flag (xla, preemption_notifier.cc)."""
    set_handler = ctypes.CDLL(None).signal
    set_handler.restype = ctypes.c_void_p
    set_handler.argtypes = (ctypes.c_int, ctypes.c_void_p)
    _notify.value = set_handler(signal.SIGTERM, None)
    signal.signal(signal.SIGTERM, _answer_sigterm)


def _tell_notifier() -> None:
    if _notify.value:
        ctypes.CFUNCTYPE(None, ctypes.c_int)(_notify.value)(signal.SIGTERM)


def _answer_sigterm(_number: int, _frame: object) -> None:
    _tell_notifier()
    if not _asked.is_set():
        threading.Thread(target=_leave_unasked, daemon=True).start()


def _leave_unasked() -> None:
    """End a training that never asks whether to save, because else it goes on until SIGKILL."""
    if not _asked.wait(_UNASKED_S):
        _leave(_TERMINATED)


def _end_all_ranks(show: Any, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    """End without the exit barrier, in which the other ranks would wait too. They fail in their next collective."""
    show(kind, value, trace)
    _leave(128 + signal.SIGINT if issubclass(kind, KeyboardInterrupt) else 1)


def _leave(code: int) -> None:
    """End this process: what was written is flushed, and a save by Orbax gets a minute to complete."""
    waiting = threading.Thread(target=_wait_for_orbax, daemon=True)
    waiting.start()
    waiting.join(_ORBAX_S)
    live.flush()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wait_for_orbax() -> None:
    if "orbax" not in sys.modules:
        return
    for each in gc.get_objects():
        kind = type(each)
        # A class may have a descriptor of this name in place of a text.
        if str(kind.__module__).startswith("orbax.") and callable(getattr(kind, "wait_until_finished", None)):
            try:
                each.wait_until_finished()
            except Exception as error:  # of any kind: the process is ending because of another fault
                sys.stderr.write(f"a save by Orbax did not complete: {error}\n")
