"""Lists everything that is wrong with the GPUs, from what the GPU watch remembers. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from prime_train.core.units import format_bytes, format_seconds
from prime_train.registry.gpus import XidEntry, xid
from prime_train.supervise.watches.gpu.history import (
    GpuHistory,
    GpuLimits,
    Scene,
    Track,
    find_gpu,
    identify_gpu,
    list_used,
    remember,
)
from prime_train.supervise.watches.gpu.samples import LOST, RESET_REQUIRED, GpuSample, Message, Xid
from prime_train.supervise.watches.watch import Alarm, Answer

_LOOK_AT = "nvidia-smi -q -d "
_RESET = "leave the node, or reset the GPU: nvidia-smi --gpu-reset -i INDEX with nothing running on it"
# nvml.h 13, nvmlGpuRecoveryAction: what the driver requests, and the answer for a run that uses the GPU.
_RECOVERY: dict[int, tuple[str, Answer]] = {
    1: ("a reset of the GPU", "restart"),
    2: ("a restart of the machine", "restart"),
    3: ("an end to traffic between GPUs", "alert"),
    4: ("a reset of the GPU once its work is done", "alert"),
    5: ("a recovery of the IMEX domain", "alert"),
    6: ("a reset of the bus", "restart"),
    7: ("a restart of the whole system", "restart"),
}


def judge(
    memory: GpuHistory, messages: Sequence[Message], scene: Scene, limits: GpuLimits
) -> tuple[GpuHistory, tuple[Alarm, ...]]:
    """The memory after the messages, and everything that is wrong at `scene.now_s`.

    An alarm of a GPU that the run does not use is a note. No alarm requests more than `limits.answer`.
    """
    memory = remember(memory, messages, scene, limits)
    if memory.no_driver:
        return memory, (_report_no_driver(memory.no_driver),)
    ours = list_used(memory, limits, scene.left_out)
    alarms: list[Alarm] = [*_judge_driver(memory, limits)]
    for gpu in memory.gpus:
        track = memory.tracks.get(identify_gpu(gpu), Track())
        of_gpu = [*_judge_fault(gpu), *_judge_recovery(gpu), *_judge_errors(gpu, track)]
        of_gpu += _judge_clocks(gpu, track, limits)
        if identify_gpu(gpu) in ours:
            alarms += (*of_gpu, *_judge_sharing(gpu, track, limits), *_judge_lost_memory(gpu, track, limits))
        else:
            alarms += (replace(alarm, answer="note") for alarm in of_gpu)
    ever = list_used(memory, limits, frozenset())
    alarms += [_report_xid(error, memory, ours, ever) for error in memory.xids]
    if limits.answer == "alert":
        alarms = [replace(alarm, answer="alert") if alarm.answer == "restart" else alarm for alarm in alarms]
    return memory, tuple(alarms)


def _alarm_of(
    gpu: GpuSample, name: str, answer: Answer, what: str, why: str, fix: str, cause_class: str = "hardware"
) -> Alarm:
    subject = f"GPU {gpu.index}"
    fix = fix.replace("INDEX", str(gpu.index))
    return Alarm("gpu", name, subject, answer, cause_class, f"{subject} {what}", why, fix, gpu.uuid)


def _report_no_driver(why: str) -> Alarm:
    what, why = f"no GPU is watched: {why}", "this machine has no NVIDIA driver that answers"
    fix = "if the run needs GPUs, install the driver, or start the container with its GPUs; else nothing"
    return Alarm("gpu", "gpu_no_driver", "", "note", "env", what, why, fix)


def _judge_driver(memory: GpuHistory, limits: GpuLimits) -> Iterator[Alarm]:
    if memory.refused:
        what = f"the NVIDIA driver does not report the state of the GPUs: {memory.refused}"
        why = "it refuses every request: it was updated under a running system, or the container lost its devices"
        fix = "run nvidia-smi; restart the container or the machine before the next start of the run"
        yield Alarm("gpu", "gpu_driver_refuses", "NVIDIA driver", "alert", "env", what, why, fix)
    elif memory.silent_s > limits.silent_after_s:
        what = f"the NVIDIA driver has not answered for {format_seconds(memory.silent_s)}"
        why = "a call into it is stuck; every program that uses a GPU may be stuck too"
        fix = "look for an XID in dmesg; if training has stopped too, leave the node or restart it"
        yield Alarm("gpu", "gpu_driver_silent", "NVIDIA driver", "alert", "hardware", what, why, fix)


def _judge_fault(gpu: GpuSample) -> Iterator[Alarm]:
    if gpu.fault == LOST:
        why = "power, heat, PCIe or the card itself failed; every process that computes on it hangs or dies"
        yield _alarm_of(gpu, "gpu_lost", "restart", "is lost", why, "leave the node: it needs a power cycle")
    elif gpu.fault == RESET_REQUIRED:
        why = "its driver found an error that it cannot clear while the GPU runs"
        yield _alarm_of(gpu, "gpu_reset_required", "restart", "must be reset", why, _RESET)
    elif gpu.fault:
        what, why = f"does not report its state: {gpu.fault}", "the driver's request to it fails"
        yield _alarm_of(gpu, "gpu_fault", "alert", what, why, f"{_LOOK_AT}ECC -i INDEX; dmesg")


def _judge_recovery(gpu: GpuSample) -> Iterator[Alarm]:
    if gpu.recovery:
        needed, answer = _RECOVERY.get(gpu.recovery, (f"recovery action {gpu.recovery}", "alert"))
        why = "its driver found an error that only this clears; programs may fail until then"
        yield _alarm_of(gpu, "gpu_recovery", answer, f"needs {needed}", why, f"give it {needed}, or leave the node")


def _judge_errors(gpu: GpuSample, track: Track) -> Iterator[Alarm]:
    if gpu.uncorrected_errors is not None and track.errors_before is not None:
        grown = gpu.uncorrected_errors - track.errors_before
        if grown > 0:
            what = f"counted {grown:,} uncorrectable memory errors since the attempt began"
            why = "weights or activations may be wrong"
            yield _alarm_of(gpu, "gpu_ecc", "restart", what, why, f"resume from the checkpoint; {_LOOK_AT}ECC -i INDEX")
    if gpu.remap_failed:
        answer: Answer = "restart" if track.failed_before is False else "alert"
        why = "a bad row of its memory stays in use, because no spare row is left"
        what = "could not remap a row of its memory"
        yield _alarm_of(gpu, "gpu_remap_failed", answer, what, why, "leave the node; have the GPU replaced")
    elif gpu.remap_pending:
        why = "a spare row replaces a bad row of its memory at the next reset; work may continue"
        what = "waits for a reset to remap a row of its memory"
        fix = "after the run: nvidia-smi --gpu-reset -i INDEX"
        yield _alarm_of(gpu, "gpu_remap_pending", "alert", what, why, fix)


def _judge_clocks(gpu: GpuSample, track: Track, limits: GpuLimits) -> Iterator[Alarm]:
    hot_s = 0.0 if track.hot_since_s is None else track.sampled_s - track.hot_since_s
    warm_s = 0.0 if track.warm_since_s is None else track.sampled_s - track.warm_since_s
    fix = f"{_LOOK_AT}PERFORMANCE,TEMPERATURE -i INDEX; cool it, or leave the node"
    if hot_s >= limits.slow_after_s:
        what = f"has been slowed by heat or power for {format_seconds(hot_s)}"
        yield _alarm_of(gpu, "gpu_throttled", "alert", what, "every GPU of the run waits for the slowest", fix)
    if warm_s >= limits.slow_after_s:
        what = f"has lowered its clocks for {format_seconds(warm_s)} to limit its temperature"
        yield _alarm_of(gpu, "gpu_warm", "note", what, "usual at full load", fix)


def _judge_sharing(gpu: GpuSample, track: Track, limits: GpuLimits) -> Iterator[Alarm]:
    if track.foreign_samples >= limits.foreign_samples:
        sizes = {use.pid: use.used_bytes for use in gpu.uses or ()}
        others = ", ".join(
            f"process {pid} ({format_bytes(size) if (size := sizes.get(pid)) is not None else 'size not known'})"
            for pid in track.foreign
        )
        why = "it takes memory and time from the run, which may run out of memory later"
        fix = "end that process, or leave the GPU out"
        yield _alarm_of(gpu, "gpu_shared", "alert", f"is also used by {others}", why, fix, cause_class="env")


def _judge_lost_memory(gpu: GpuSample, track: Track, limits: GpuLimits) -> Iterator[Alarm]:
    if track.empty >= limits.empty_samples and not gpu.fault:
        what = f"no longer holds memory of {track.held_by}, which still runs"
        why = "a process that lost its GPU may wait forever without an error"
        fix = "read the end of the log of the process that ran there"
        yield _alarm_of(gpu, "gpu_memory_gone", "restart", what, why, fix, cause_class="hang")


def _report_xid(error: Xid, memory: GpuHistory, ours: frozenset[str], ever: frozenset[str]) -> Alarm:
    entry = xid(error.code)
    gpu = find_gpu(memory, error)
    subject = f"GPU {gpu.index}" if gpu else error.uuid or (f"GPU at {error.pci}" if error.pci else "a GPU")
    answer: Answer = _choose_answer(entry, error) if gpu and identify_gpu(gpu) in ours else "note"
    what = f"{subject} reported XID {error.code}, {entry.name}" + (f" ({error.text})" if error.text else "")
    fix = entry.fix.replace("INDEX", str(gpu.index) if gpu else "INDEX")
    cause_class, where = _choose_cause_class(entry, gpu, memory, ever), gpu.uuid if gpu else ""
    return Alarm("gpu", f"gpu_xid_{error.code}", subject, answer, cause_class, what, entry.why, fix, where)


def _choose_answer(entry: XidEntry, error: Xid) -> Answer:
    if not entry.only_with:
        return entry.answer
    if not error.text:
        return "alert"
    return entry.answer if entry.only_with in error.text.replace(",", " ").split() else "note"


def _choose_cause_class(entry: XidEntry, gpu: GpuSample | None, memory: GpuHistory, ever: frozenset[str]) -> str:
    """An error that the program may have caused is retried once; then the GPU where it came back decides.

    `ever`: the GPUs of the run, with those that were left out meanwhile.
    """
    of_the_run = [one for one in memory.program_xids if one.gpu in ever]
    if entry.cause_class != "unknown" or gpu is None:
        return entry.cause_class
    if not any(one.attempt < memory.attempt for one in of_the_run):
        return "unknown"
    return "hardware" if {one.gpu for one in of_the_run} == {identify_gpu(gpu)} else "bug"
