"""Run as a program: writes what NVML and the kernel's log say of the GPUs, one JSON object to a line.

python gpu_program.py INTERVAL_S KERNEL_LOG LOG_SEQUENCE RUN_DIRECTORY

It is a program of its own because a wedged driver holds whoever asks it, and whoever looks into a process that it
holds. It opens no CUDA context, which would take memory on every GPU. The log is read by a thread, which goes on where
the driver holds the other one: then the log says why. Ends with 0 where there is no driver, and with 1 where the
driver gives no answer that can be used.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this folder: a module in it must not stand in for a package

import contextlib
import ctypes
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pynvml

from prime_train.supervise.launch import environment
from prime_train.supervise.watches.gpu.kernel_log import KernelLog, address
from prime_train.supervise.watches.gpu.samples import LOST, RESET_REQUIRED

_NO_DRIVER = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
_FAULTS = {pynvml.NVML_ERROR_GPU_IS_LOST: LOST, pynvml.NVML_ERROR_RESET_REQUIRED: RESET_REQUIRED}
_EVENTS = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventTypeDoubleBitEccError
    | 0x4000  # GpuUnavailableError, nvml.h 13: nvidia-ml-py 12 has no name for it
    | 0x8000  # GpuRecoveryAction
)
_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, nvml.h 12.8
_SOON_S = 1.0  # between an event and the sample that tells of it: events may come in storms
_SAYING = threading.Lock()


def say(line: dict[str, Any]) -> None:
    with _SAYING:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


class Driver:
    """NVML, opened. Whatever the library refuses as unknown to it is None; a GPU that is gone is a fault."""

    def __init__(self, run: str) -> None:
        pynvml.nvmlInit()
        self._run = run
        self._handles: list[Any] = []
        self._names: list[dict[str, Any]] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            named: dict[str, Any] = {"index": index, "uuid": ""}
            handle = None
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                named["uuid"] = _text(pynvml.nvmlDeviceGetUUID(handle))
                pci = _optional(pynvml.nvmlDeviceGetPciInfo_v3, handle)
                named["pci"] = "" if pci is None else address(_text(pci.busId))
            except pynvml.NVMLError as error:
                named["fault"] = _fault(error)
            self._handles.append(handle)
            self._names.append(named)
        self._events = self._listen()
        self.deaf = False  # it heard of errors, and does no longer

    @property
    def count(self) -> int:
        return len(self._handles)

    def sample(self) -> list[dict[str, Any]]:
        return [
            named if handle is None or "fault" in named else named | _measured(handle, self._run)
            for handle, named in zip(self._handles, self._names, strict=True)
        ]

    def wait(self, until_s: float) -> Iterator[dict[str, Any]]:
        """XIDs as they come, until `until_s` (monotonic), or soon after anything else that a sample will tell."""
        while (left_s := until_s - time.monotonic()) > 0:
            if self._events is None:
                time.sleep(left_s)
                continue
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, max(1, int(left_s * 1000)))
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    self._events, self.deaf = None, True  # of a set with a lost GPU every wait fails at once
                continue
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                yield {"taken_s": time.monotonic(), "code": int(event.eventData), "uuid": self._uuid(event.device)}
            else:
                until_s = min(until_s, time.monotonic() + _SOON_S)

    def close(self) -> None:
        pynvml.nvmlShutdown()

    def _listen(self) -> Any:
        """A set that hears of errors; None where the driver has none, or no GPU that takes part."""
        try:
            events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError:
            return None
        heard = False
        for handle in self._handles:
            if handle is None:
                continue
            try:
                kinds = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & _EVENTS
                pynvml.nvmlDeviceRegisterEvents(handle, kinds, events)
                heard = heard or bool(kinds)
            except pynvml.NVMLError:
                continue
        return events if heard else None

    def _uuid(self, device: Any) -> str:
        for handle, named in zip(self._handles, self._names, strict=True):
            if handle is not None and _pointer(handle) == _pointer(device):
                return str(named["uuid"])
        return ""


def _measured(handle: Any, run: str) -> dict[str, Any]:
    try:
        remapped = _optional(pynvml.nvmlDeviceGetRemappedRows, handle)
        return {
            "used_bytes": _used_bytes(handle),
            "uses": _uses(handle, run),
            "utilisation_percent": getattr(_optional(pynvml.nvmlDeviceGetUtilizationRates, handle), "gpu", None),
            "slow_reasons": _first(
                handle,
                pynvml.nvmlDeviceGetCurrentClocksEventReasons,
                pynvml.nvmlDeviceGetCurrentClocksThrottleReasons,  # its name before R535
            ),
            "uncorrected_errors": _optional(
                pynvml.nvmlDeviceGetTotalEccErrors,
                handle,
                pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                pynvml.NVML_VOLATILE_ECC,
            ),
            "remap_pending": None if remapped is None else bool(remapped[2]),
            "remap_failed": None if remapped is None else bool(remapped[3]),
            "recovery": _recovery(handle),
        }
    except pynvml.NVMLError as error:
        return {"fault": _fault(error)}


def _used_bytes(handle: Any) -> int:
    """Without what the driver keeps for itself, which the first form of the call counts in: half a GiB of an H100."""
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).used)
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotSupported):  # before R510
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def _uses(handle: Any, run: str) -> list[dict[str, Any]] | None:
    found = _first(
        handle, pynvml.nvmlDeviceGetComputeRunningProcesses_v3, pynvml.nvmlDeviceGetComputeRunningProcesses_v2
    )
    return (
        None
        if found is None
        else [{"pid": user.pid, "used_bytes": user.usedGpuMemory} | _kin(user.pid, run) for user in found]
    )


def _kin(pid: int, run: str) -> dict[str, Any]:
    """Where a process comes from, and whether it carries the mark of the run."""
    ancestors, marked = None, False
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it is not here, or another user's
        process = psutil.Process(pid)
        ancestors = [ancestor.pid for ancestor in process.parents()]
        marked = process.environ().get(environment.RUN) == run
    return {"ancestors": ancestors, "marked": marked}


def _recovery(handle: Any) -> int | None:
    found = _optional(pynvml.nvmlDeviceGetFieldValues, handle, [_RECOVERY_ACTION])
    if found is None or found[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(found[0].value.uiVal)


def _first(handle: Any, *calls: Any) -> Any:
    """The answer of the first call that the driver knows."""
    return next((found for call in calls if (found := _optional(call, handle)) is not None), None)


def _optional(call: Any, *arguments: Any) -> Any:
    """The answer; None where this driver or GPU has none. Raises NVMLError where the GPU is gone."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _FAULTS:
            raise
        return None


def _fault(error: Any) -> str:
    return _FAULTS.get(error.value, str(error))


def _pointer(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def main(interval_s: float, log_path: Path, sequence: int, run: str) -> int:
    log = KernelLog(log_path, sequence, say)
    threading.Thread(target=log.follow, name="kernel-log", daemon=True).start()
    try:
        driver = Driver(run)
        if not driver.count:
            say({"no_driver": "its driver lists no GPU"})
            return 0
        while True:
            due_s = time.monotonic() + interval_s
            sampled = driver.sample()
            say({"taken_s": time.monotonic(), "gpus": sampled, "log_sequence": log.sequence})
            for xid in driver.wait(due_s):
                say(xid)
            if driver.deaf or any(
                "fault" in gpu for gpu in sampled
            ):  # a GPU that was reset answers to a new handle alone
                driver.close()
                driver = Driver(run)
    except pynvml.NVMLError as error:
        if error.value in _NO_DRIVER:
            say({"no_driver": str(error)})
            return 0
        say({"refused": str(error)})
        return 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
