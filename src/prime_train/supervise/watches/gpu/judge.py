"""Judges what the GPU watch remembers: everything that is wrong at present. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from prime_train.core.units import format_bytes, format_seconds
from prime_train.events import AlarmRaised
from prime_train.registry.xids import XidEntry, xid
from prime_train.supervise.watches.gpu.history import Limits, Memory, Scene, Track, after, gpu_of, key, used
from prime_train.supervise.watches.gpu.samples import LOST, RESET_REQUIRED, GpuSample, Heard, Xid
from prime_train.supervise.watches.watch import Alarm, Answer

_FAILURES_TO_LEAVE_OUT = 2
_LOOK_AT = "nvidia-smi -q -d "
_RESET = "leave the node, or reset the GPU: nvidia-smi --gpu-reset -i INDEX with nothing running on it"
# nvml.h 13, nvmlGpuRecoveryAction: what the driver wants, and what follows for a run that uses the GPU.
_RECOVERY: dict[int, tuple[str, Answer]] = {
    1: ("a reset of the GPU", "restart"),
    2: ("a restart of the machine", "restart"),
    3: ("an end to traffic between GPUs", "alert"),
    4: ("a reset of the GPU once its work is done", "alert"),
    5: ("a recovery of the IMEX domain", "alert"),
    6: ("a reset of the bus", "restart"),
    7: ("a restart of the whole system", "restart"),
}


def judge(memory: Memory, heard: Sequence[Heard], scene: Scene, limits: Limits) -> tuple[Memory, tuple[Alarm, ...]]:
    """The memory after what was heard, and everything that is wrong at `scene.now_s`.

    An alarm of a GPU that the run does not use is a note. None asks for more than `limits.answer`.
    """
    memory = after(memory, heard, scene, limits)
    if memory.no_driver:
        return memory, (_no_driver(memory.no_driver),)
    ours = used(memory, limits, scene.left_out)
    alarms: list[Alarm] = [*_driver(memory, limits)]
    for gpu in memory.gpus:
        track = memory.tracks.get(key(gpu), Track())
        of_gpu = _state(gpu, track, limits)
        if key(gpu) in ours:
            of_gpu = (*of_gpu, *_company(gpu, track, limits), *_emptied(gpu, track, limits))
        alarms += [alarm if key(gpu) in ours else replace(alarm, answer="note") for alarm in of_gpu]
    ever = used(memory, limits, frozenset())
    alarms += [_xid(said, memory, ours, ever) for said in memory.xids]
    if limits.answer == "alert":
        alarms = [replace(alarm, answer="alert") if alarm.answer == "restart" else alarm for alarm in alarms]
    return memory, tuple(alarms)


def left_out(failures: Iterable[AlarmRaised]) -> tuple[str, ...]:
    """UUIDs of the GPUs on which two attempts ended by an alarm of this watch, in the order of their second failure.

    `failures`: in the order in which they were raised. One that was raised while no attempt lived is of the attempt
    before, for a dead trainer is often noticed sooner than what killed it. An error that the GPU gets over by itself
    does not count, nor one that was found to be the program's.
    """
    attempts: dict[str, set[int]] = {}
    out: list[str] = []
    latest = 0
    for raised in failures:
        latest = raised.attempt or latest
        if raised.watch != "gpu" or raised.answer != "restart" or not raised.where.startswith("GPU-"):
            continue
        code = raised.name.removeprefix("gpu_xid_")
        if raised.cause_class not in ("hardware", "unknown") or (code.isdigit() and not xid(int(code)).leave_out):
            continue
        failed = attempts.setdefault(raised.where, set())
        failed.add(latest)
        if len(failed) >= _FAILURES_TO_LEAVE_OUT and raised.where not in out:
            out.append(raised.where)
    return tuple(out)


def _alarm(name: str, subject: str, answer: Answer, what: str, why: str, fix: str, **rest: str) -> Alarm:
    return Alarm(
        "gpu", name, subject, answer, rest.get("cause_class", "hardware"), what, why, fix, rest.get("where", "")
    )


def _of(gpu: GpuSample, name: str, answer: Answer, what: str, why: str, fix: str, **rest: str) -> Alarm:
    told = fix.replace("INDEX", str(gpu.index))
    return _alarm(name, _name(gpu), answer, f"{_name(gpu)} {what}", why, told, where=gpu.uuid, **rest)


def _name(gpu: GpuSample) -> str:
    return f"GPU {gpu.index}"


# --- the driver --------------------------------------------------------------------------------------


def _no_driver(why: str) -> Alarm:
    return _alarm(
        "gpu_no_driver",
        "",
        "note",
        f"no GPU is watched: {why}",
        "this machine has no NVIDIA driver that can be asked",
        "nothing, where the run needs no GPU; else install the driver, or start the container with its GPUs",
        cause_class="env",
    )


def _driver(memory: Memory, limits: Limits) -> Iterator[Alarm]:
    if memory.refused:
        yield _alarm(
            "gpu_driver_refuses",
            "NVIDIA driver",
            "alert",
            f"the NVIDIA driver does not tell how the GPUs are: {memory.refused}",
            "it refuses all that ask: it was updated under a running system, or the container lost its devices",
            "nvidia-smi; restart the container or the machine before the next start of the run",
            cause_class="env",
        )
    elif memory.silent_s > limits.silent_after_s:
        yield _alarm(
            "gpu_driver_silent",
            "NVIDIA driver",
            "alert",
            f"the NVIDIA driver does not answer: {format_seconds(memory.silent_s)} without a word",
            "a call into it is stuck, and so may be every program that uses a GPU",
            "look at dmesg for an XID; where training has stopped too, leave the node or restart it",
        )


# --- one GPU -----------------------------------------------------------------------------------------


def _state(gpu: GpuSample, track: Track, limits: Limits) -> tuple[Alarm, ...]:
    return (*_fault(gpu), *_wants(gpu), *_errors(gpu, track), *_slow(gpu, track, limits))


def _fault(gpu: GpuSample) -> Iterator[Alarm]:
    if gpu.fault == LOST:
        why = "power, heat, PCIe or the card itself failed; whatever computes on it hangs or dies"
        yield _of(gpu, "gpu_lost", "restart", "is lost", why, "leave the node: it needs a power cycle")
    elif gpu.fault == RESET_REQUIRED:
        why = "its driver met an error that it cannot clear while the GPU runs"
        yield _of(gpu, "gpu_reset_required", "restart", "must be reset", why, _RESET)
    elif gpu.fault:
        what = f"does not tell how it is: {gpu.fault}"
        yield _of(gpu, "gpu_fault", "alert", what, "its driver fails to ask it", f"{_LOOK_AT}ECC -i INDEX; dmesg")


def _wants(gpu: GpuSample) -> Iterator[Alarm]:
    if gpu.recovery:
        wanted, answer = _RECOVERY.get(gpu.recovery, (f"recovery action {gpu.recovery}", "alert"))
        why = "its driver met an error that this alone clears; programs may fail until then"
        yield _of(gpu, "gpu_recovery", answer, f"wants {wanted}", why, f"give it {wanted}, or leave the node")


def _errors(gpu: GpuSample, track: Track) -> Iterator[Alarm]:
    if gpu.uncorrected_errors is not None and track.errors_before is not None:
        grown = gpu.uncorrected_errors - track.errors_before
        if grown > 0:
            what = f"counted {grown:,} memory errors that it could not correct, since the attempt began"
            why = "weights or activations may be wrong"
            yield _of(gpu, "gpu_ecc", "restart", what, why, f"resume from the checkpoint; {_LOOK_AT}ECC -i INDEX")
    if gpu.remap_failed:
        answer: Answer = "restart" if track.failed_before is False else "alert"
        why = "a bad row of its memory stays in use, because no spare one is left"
        what = "could not remap a row of its memory"
        yield _of(gpu, "gpu_remap_failed", answer, what, why, "leave the node; have the GPU replaced")
    elif gpu.remap_pending:
        why = "a bad row of its memory is replaced by a spare one at the next reset; work may go on"
        what = "waits for a reset to remap a row of its memory"
        fix = "when the run is over: nvidia-smi --gpu-reset -i INDEX"
        yield _of(gpu, "gpu_remap_pending", "alert", what, why, fix)


def _slow(gpu: GpuSample, track: Track, limits: Limits) -> Iterator[Alarm]:
    hot_s = 0.0 if track.hot_since_s is None else track.sampled_s - track.hot_since_s
    warm_s = 0.0 if track.warm_since_s is None else track.sampled_s - track.warm_since_s
    fix = f"{_LOOK_AT}PERFORMANCE,TEMPERATURE -i INDEX; cool it, or leave the node"
    if hot_s >= limits.slow_after_s:
        what = f"is held back by heat or power, for {format_seconds(hot_s)}"
        yield _of(gpu, "gpu_throttled", "alert", what, "every GPU of the run waits for the slowest", fix)
    if warm_s >= limits.slow_after_s:
        what = f"lowers its clocks to keep its temperature, for {format_seconds(warm_s)}"
        yield _of(gpu, "gpu_warm", "note", what, "usual at full load", fix)


def _company(gpu: GpuSample, track: Track, limits: Limits) -> Iterator[Alarm]:
    if track.foreign_samples >= limits.foreign_samples:
        sizes = {use.pid: use.used_bytes for use in gpu.uses or ()}
        told = ", ".join(
            f"process {pid} ({format_bytes(size) if (size := sizes.get(pid)) is not None else 'size not known'})"
            for pid in track.foreign
        )
        why = "it takes memory and time from the run, which may run out of memory later"
        yield _of(
            gpu,
            "gpu_shared",
            "alert",
            f"is also used by {told}",
            why,
            "end it, or leave the GPU out",
            cause_class="env",
        )


def _emptied(gpu: GpuSample, track: Track, limits: Limits) -> Iterator[Alarm]:
    if track.empty >= limits.empty_samples and not gpu.fault:
        what = f"holds no memory of {track.held_by} any more, which held some and lives"
        why = "a process that lost its GPU may wait for ever without an error"
        fix = "look at the end of the log of whatever ran there"
        yield _of(gpu, "gpu_memory_gone", "restart", what, why, fix, cause_class="hang")


# --- the driver's errors -----------------------------------------------------------------------------


def _xid(said: Xid, memory: Memory, ours: frozenset[str], ever: frozenset[str]) -> Alarm:
    entry = xid(said.code)
    gpu = gpu_of(memory, said)
    subject = _name(gpu) if gpu else said.uuid or (f"GPU at {said.pci}" if said.pci else "a GPU")
    answer: Answer = _answer(entry, said) if gpu and key(gpu) in ours else "note"
    told = f" ({said.text})" if said.text else ""
    fix = entry.fix.replace("INDEX", str(gpu.index) if gpu else "INDEX")
    return _alarm(
        f"gpu_xid_{said.code}",
        subject,
        answer,
        f"{subject} reported XID {said.code}, {entry.name}{told}",
        entry.why,
        fix,
        cause_class=_cause_class(entry, gpu, memory, ever),
        where=gpu.uuid if gpu else "",
    )


def _answer(entry: XidEntry, said: Xid) -> Answer:
    if not entry.only_with:
        return entry.answer
    if not said.text:
        return "alert"
    return entry.answer if entry.only_with in said.text.replace(",", " ").split() else "note"


def _cause_class(entry: XidEntry, gpu: GpuSample | None, memory: Memory, ever: frozenset[str]) -> str:
    """Of an error that may be the program's: tried again once, and then it is told by where it came back.

    `ever`: the GPUs of the run, those among them that were left out meanwhile.
    """
    of_the_run = [met for met in memory.program_xids if met.gpu in ever]
    if entry.cause_class != "unknown" or gpu is None:
        return entry.cause_class
    if not any(met.attempt < memory.attempt for met in of_the_run):
        return "unknown"
    return "hardware" if {met.gpu for met in of_the_run} == {key(gpu)} else "bug"
