"""Run as a program: writes what NVML and the kernel's log report about the GPUs, one JSON object to a line.

python gpu_program.py INTERVAL_S KERNEL_LOG LOG_SEQUENCE RUN_DIRECTORY

It is a program of its own because a wedged driver blocks each process that calls it, and each process that inspects a
process in such a call. It opens no CUDA context, which would take memory on every GPU. A thread reads the log, and
continues while the driver blocks the other thread: the log then has the reason. Exit code 0: there is no driver; 1: the
driver gives no usable answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pynvml

from prime_train.supervise.launch import environment
from prime_train.supervise.watches.gpu.health import write_gpu_health
from prime_train.supervise.watches.gpu.samples import LOST, RESET_REQUIRED
from prime_train.supervise.watches.kernel_log import KernelLog, address
from prime_train.supervise.watches.sample_lines import serve, write

_NO_DRIVER = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
_FAULTS = {pynvml.NVML_ERROR_GPU_IS_LOST: LOST, pynvml.NVML_ERROR_RESET_REQUIRED: RESET_REQUIRED}
_EVENTS = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventTypeDoubleBitEccError
    | 0x4000  # GpuUnavailableError, nvml.h 13: nvidia-ml-py 12 has no name for it
    | 0x8000  # GpuRecoveryAction
)
_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, nvml.h 12.8
_SOON_S = 1.0  # between an event and the sample that shows it, because events may come in storms


class Driver:
    """NVML, opened. A value that the library does not know is None; a GPU that is gone is a fault."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._open()

    def _open(self) -> None:
        pynvml.nvmlInit()
        self._handles: list[Any] = []
        self._names: list[dict[str, Any]] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            named: dict[str, Any] = {"index": index, "uuid": ""}
            handle = None
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                named["uuid"] = _decode(pynvml.nvmlDeviceGetUUID(handle))
                pci = _call(pynvml.nvmlDeviceGetPciInfo_v3, handle)
                named["pci"] = "" if pci is None else address(_decode(pci.busId))
            except pynvml.NVMLError as error:
                named["fault"] = _describe_fault(error)
            self._handles.append(handle)
            self._names.append(named)
        self._events = self._register()
        self._is_stale = False  # a GPU that was reset, and a set of events that failed, need a new handle

    @property
    def count(self) -> int:
        return len(self._handles)

    def sample(self) -> dict[str, Any]:
        if self._is_stale:
            pynvml.nvmlShutdown()
            self._open()
        gpus = [
            named if handle is None or "fault" in named else named | _measure(handle, self._run)
            for handle, named in zip(self._handles, self._names, strict=True)
        ]
        self._is_stale = any("fault" in gpu for gpu in gpus)
        write_gpu_health(Path(self._run), {"gpus": gpus})
        return {"taken_s": time.monotonic(), "gpus": gpus}

    def report_events(self, seconds: float) -> None:
        """Write XIDs as they come, for `seconds`, or until soon after any other event, which a sample will show."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            if self._events is None:
                time.sleep(left_s)
                continue
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, max(1, int(left_s * 1000)))
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    self._events, self._is_stale = None, True  # with a lost GPU in the set, every wait fails at once
                continue
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                uuid = self._find_uuid(event.device)
                write({"taken_s": time.monotonic(), "code": int(event.eventData), "uuid": uuid})
            else:
                until_s = min(until_s, time.monotonic() + _SOON_S)

    def _register(self) -> Any:
        """A set that receives errors; None if the driver has none, or no GPU supports it."""
        try:
            events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError:
            return None
        registered = False
        for handle in self._handles:
            if handle is None:
                continue
            try:
                kinds = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & _EVENTS
                pynvml.nvmlDeviceRegisterEvents(handle, kinds, events)
                registered = registered or bool(kinds)
            except pynvml.NVMLError:
                continue
        return events if registered else None

    def _find_uuid(self, device: Any) -> str:
        for handle, named in zip(self._handles, self._names, strict=True):
            if handle is not None and _read_pointer(handle) == _read_pointer(device):
                return str(named["uuid"])
        return ""


def _measure(handle: Any, run: str) -> dict[str, Any]:
    try:
        remapped = _call(pynvml.nvmlDeviceGetRemappedRows, handle)
        return {
            "used_bytes": _read_used_bytes(handle),
            "total_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            "temperature_c": _call(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
            "uses": _list_uses(handle, run),
            "utilisation_percent": getattr(_call(pynvml.nvmlDeviceGetUtilizationRates, handle), "gpu", None),
            "slow_reasons": _call_first(
                handle,
                pynvml.nvmlDeviceGetCurrentClocksEventReasons,
                pynvml.nvmlDeviceGetCurrentClocksThrottleReasons,  # its name before R535
            ),
            "uncorrected_errors": _count_errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            "corrected_errors": _count_errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            "remapped_rows": None if remapped is None else int(remapped[0] + remapped[1]),
            "pcie_replays": _call(pynvml.nvmlDeviceGetPcieReplayCounter, handle),
            "slowdown_c": _call(
                pynvml.nvmlDeviceGetTemperatureThreshold, handle, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
            ),
            "remap_pending": None if remapped is None else bool(remapped[2]),
            "remap_failed": None if remapped is None else bool(remapped[3]),
            "recovery": _read_recovery(handle),
        }
    except pynvml.NVMLError as error:
        return {"fault": _describe_fault(error)}


def _count_errors(handle: Any, kind: int) -> Any:
    return _call(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_VOLATILE_ECC)


def _read_used_bytes(handle: Any) -> int:
    """Without what the driver keeps for itself, which the first form of the call counts in: half a GiB of an H100."""
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).used)
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotSupported):  # before R510
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def _list_uses(handle: Any, run: str) -> list[dict[str, Any]] | None:
    found = _call_first(
        handle, pynvml.nvmlDeviceGetComputeRunningProcesses_v3, pynvml.nvmlDeviceGetComputeRunningProcesses_v2
    )
    if found is None:
        return None
    return [{"pid": user.pid, "used_bytes": user.usedGpuMemory} | _read_kin(user.pid, run) for user in found]


def _read_kin(pid: int, run: str) -> dict[str, Any]:
    """The ancestors of a process, and whether it carries the mark of the run."""
    ancestors, marked = None, False
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # of another namespace, or of another user
        process = psutil.Process(pid)
        ancestors = [ancestor.pid for ancestor in process.parents()]
        marked = process.environ().get(environment.RUN) == run
    return {"ancestors": ancestors, "marked": marked}


def _read_recovery(handle: Any) -> int | None:
    found = _call(pynvml.nvmlDeviceGetFieldValues, handle, [_RECOVERY_ACTION])
    if found is None or found[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(found[0].value.uiVal)


def _call_first(handle: Any, *calls: Any) -> Any:
    """The answer of the first call that the driver supports."""
    return next((found for call in calls if (found := _call(call, handle)) is not None), None)


def _call(call: Any, *arguments: Any) -> Any:
    """The answer; None if this driver or GPU has none. Raises NVMLError if the GPU is gone."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _FAULTS:
            raise
        return None


def _describe_fault(error: Any) -> str:
    return _FAULTS.get(error.value, str(error))


def _read_pointer(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _decode(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def main(interval_s: float, log_path: Path, sequence: int, run: str) -> int:
    log = KernelLog(log_path, sequence, write)
    threading.Thread(target=log.follow, name="kernel-log", daemon=True).start()
    try:
        driver = Driver(run)
        if not driver.count:
            write({"no_driver": "its driver lists no GPU"})
            return 0
        serve(lambda: driver.sample() | {"log_sequence": log.place.sequence}, interval_s, driver.report_events)
    except pynvml.NVMLError as error:
        if error.value in _NO_DRIVER:
            write({"no_driver": str(error)})
            return 0
        write({"refused": str(error)})
        return 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
