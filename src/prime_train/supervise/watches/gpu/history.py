"""What the GPU watch remembers between looks, and how a sample changes it. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from prime_train.facts.host import visible_indices
from prime_train.registry.gpus import xid
from prime_train.supervise.watches.gpu.samples import (
    LOST,
    DriverRefusal,
    GpuProcess,
    GpuReading,
    GpuSample,
    Message,
    NoDriver,
    Xid,
)

# Bits of the reasons why a GPU is slow, nvml.h nvmlClocksEventReasons: hardware slowdown, thermal, power brake.
HOT = 0x8 | 0x40 | 0x80
WARM = 0x20  # the driver limits the temperature: usual at full load
FOREIGN = ""  # the owner of a process of another program
THE_RUN = "the run"  # the owner of a process of the run whose role is not known
_LONGEST_LOOK_S = 5.0  # a supervisor that was stopped could not read its child meanwhile


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """Settings and limits of the watch. `visible` as in CUDA_VISIBLE_DEVICES, None = all GPUs."""

    answer: Literal["alert", "restart"] = "restart"
    visible: str | None = None
    interval_s: float = 10.0
    slow_after_s: float = 60.0
    empty_bytes: int = 512 * 2**20  # about a CUDA context alone; the NVIDIA resiliency extension uses the same
    empty_samples: int = 3
    foreign_samples: int = 2

    @property
    def silent_after_s(self) -> float:
        return 3 * self.interval_s + 5.0


@dataclass(frozen=True, slots=True)
class Scene:
    """What the supervisor knows at a look. `now_s` by time.monotonic().

    `roles`: the roles of the attempt's own children, by pid. `steady`: the roles that live, are past their start, and
    are in no phase in which they may release memory. `moving`: a role is in such a phase.
    """

    now_s: float
    attempt: int = 0  # 0 = none lives
    roles: Mapping[int, str] = field(default_factory=dict)
    steady: frozenset[str] = frozenset()
    moving: bool = False
    left_out: frozenset[str] = frozenset()  # UUIDs of GPUs that the run no longer uses


@dataclass(frozen=True, slots=True)
class Track:
    """One GPU over the attempt: its memory errors at the start, and how long or how often its state has lasted."""

    sampled_s: float = 0.0
    errors_before: int | None = None
    failed_before: bool | None = None
    hot_since_s: float | None = None
    warm_since_s: float | None = None
    held_by: str = ""  # the role that held memory on it after its start
    empty: int = 0  # samples in a row without memory of that role
    foreign: tuple[int, ...] = ()  # pids
    foreign_samples: int = 0


@dataclass(frozen=True, slots=True)
class ProgramXid:
    """An error that the program may have caused as well as the GPU."""

    attempt: int
    gpu: str


@dataclass(frozen=True, slots=True)
class GpuHistory:
    """The first value is `GpuHistory()`. The fields after `known` are about the latest attempt alone."""

    looked_s: float | None = None
    silent_s: float = 0.0  # while the supervisor could read
    log_sequence: int = -1
    no_driver: str = ""
    refused: str = ""
    comparable: bool = False  # the driver's process numbers are those of this machine
    program_xids: tuple[ProgramXid, ...] = ()
    known: tuple[GpuSample, ...] = ()  # every GPU ever seen
    attempt: int = 0  # the latest, even if it has ended
    gpus: tuple[GpuSample, ...] = ()  # as of the latest reading, and those missing from it
    tracks: Mapping[str, Track] = field(default_factory=dict)
    xids: tuple[Xid, ...] = ()


def identify_gpu(gpu: GpuSample) -> str:
    """The UUID of a GPU, else its number."""
    return gpu.uuid or f"GPU {gpu.index}"


def find_owner(use: GpuProcess, roles: Mapping[int, str]) -> str | None:
    """The role that a process belongs to, FOREIGN, or None if no process here has its pid."""
    if use.ancestors is None:
        return None
    role = next((roles[pid] for pid in (use.pid, *use.ancestors) if pid in roles), None)
    return role or (THE_RUN if use.marked else FOREIGN)


def list_used(memory: GpuHistory, limits: GpuLimits, left_out: frozenset[str]) -> frozenset[str]:
    """The keys of the GPUs that the run may use: all of them where it may use parts of GPUs (MIG)."""
    gpus = sorted(memory.known, key=lambda gpu: gpu.index)
    if limits.visible is not None and "MIG-" in limits.visible:
        return frozenset(map(identify_gpu, gpus)) - left_out
    chosen = visible_indices(limits.visible, [gpu.uuid for gpu in gpus])
    return frozenset(identify_gpu(gpus[index]) for index in chosen) - left_out


def remember(memory: GpuHistory, messages: Sequence[Message], scene: Scene, limits: GpuLimits) -> GpuHistory:
    listened_s = 0.0 if memory.looked_s is None else min(scene.now_s - memory.looked_s, _LONGEST_LOOK_S)
    memory = replace(memory, looked_s=scene.now_s, silent_s=memory.silent_s + max(0.0, listened_s))
    for message in messages:
        if isinstance(message, Xid):  # it came before this look, so before an attempt whose first look this is
            memory = _add_xid(memory, message)
    if scene.attempt not in (0, memory.attempt):  # what was wrong in one attempt stands until the next one begins
        memory = replace(memory, attempt=scene.attempt, gpus=(), tracks={}, xids=())
    for message in messages:
        match message:
            case GpuReading():
                memory = _add_reading(memory, message, scene, limits)
            case NoDriver(why=why) if not memory.known:
                memory = replace(memory, no_driver=why)
            case NoDriver(why=why) | DriverRefusal(why=why):
                memory = replace(memory, refused=why, silent_s=0.0)
            case Xid():
                pass
    return memory


def find_gpu(memory: GpuHistory, error: Xid) -> GpuSample | None:
    """The GPU of an error; None if it was never seen."""
    for gpu in memory.known:
        if (error.uuid and error.uuid == identify_gpu(gpu)) or (error.pci and error.pci == gpu.pci):
            return gpu
    return None


def _add_reading(memory: GpuHistory, reading: GpuReading, scene: Scene, limits: GpuLimits) -> GpuHistory:
    known, gpus = _match(memory.known, reading.gpus)
    owners = {use.pid: find_owner(use, scene.roles) for gpu in gpus for use in gpu.uses or ()}
    comparable = memory.comparable or any(owners.values())
    if known != memory.known:  # an error may have come before the GPU was listed
        early, memory = memory.xids, replace(memory, known=known, xids=())
        for error in early:
            memory = _add_xid(memory, error)
    memory = replace(memory, gpus=gpus, comparable=comparable, silent_s=0.0, refused="")
    memory = replace(memory, log_sequence=max(memory.log_sequence, reading.log_sequence))
    tracks = dict(memory.tracks)
    for gpu in gpus:
        track = _track(memory.tracks.get(identify_gpu(gpu), Track()), gpu, reading.taken_s)
        holder = _find_holder(gpu, owners, limits, comparable=comparable)
        track = _count_empty(track, holder, scene)
        tracks[identify_gpu(gpu)] = _count_foreign(track, gpu, owners if comparable else {})
    return replace(memory, tracks=tracks)


def _match(
    known: tuple[GpuSample, ...], seen: Iterable[GpuSample]
) -> tuple[tuple[GpuSample, ...], tuple[GpuSample, ...]]:
    """Every GPU ever seen, and the newest sample of each. A GPU that is no longer listed is lost.

    A lost GPU may come without a UUID, and takes the UUID of the GPU that had its number. If the driver omits it, the
    numbers of the GPUs after it change; these keep the number that they came with.
    """
    found = {identify_gpu(gpu): gpu for gpu in known}
    newest: dict[str, GpuSample] = {}
    for gpu in seen:
        if not gpu.uuid:
            before = next((other for other in known if other.index == gpu.index), gpu)
            gpu = replace(gpu, uuid=before.uuid, pci=before.pci)
        else:
            gpu = replace(gpu, index=found[gpu.uuid].index if gpu.uuid in found else gpu.index)
            found.pop(f"GPU {gpu.index}", None)  # it was lost when the watch began, and is back
        found.setdefault(identify_gpu(gpu), GpuSample(gpu.index, gpu.uuid, gpu.pci))
        newest[identify_gpu(gpu)] = gpu
    ordered = tuple(sorted(found.values(), key=lambda gpu: gpu.index))
    return ordered, tuple(newest.get(identify_gpu(gpu)) or replace(gpu, fault=LOST) for gpu in ordered)


def _track(track: Track, gpu: GpuSample, taken_s: float) -> Track:
    errors = track.errors_before
    if gpu.uncorrected_errors is not None and (errors is None or gpu.uncorrected_errors < errors):
        errors = gpu.uncorrected_errors  # a reloaded driver counts from zero
    reasons = gpu.slow_reasons or 0
    return replace(
        track,
        sampled_s=taken_s,
        errors_before=errors,
        failed_before=gpu.remap_failed if track.failed_before is None else track.failed_before,
        hot_since_s=(track.hot_since_s or taken_s) if reasons & HOT else None,
        warm_since_s=(track.warm_since_s or taken_s) if reasons & WARM else None,
    )


def _find_holder(
    gpu: GpuSample, owners: Mapping[int, str | None], limits: GpuLimits, *, comparable: bool
) -> str | None:
    """The role that holds memory on a GPU, "" if none does, None if that is not known.

    If the driver's pids are those of another namespace, every holder of memory counts as the run.
    """
    if comparable and gpu.uses is not None:
        return next((name for use in gpu.uses if (name := owners.get(use.pid))), "")
    if gpu.used_bytes is None:
        return None
    return THE_RUN if gpu.used_bytes >= limits.empty_bytes else ""


def _count_empty(track: Track, holder: str | None, scene: Scene) -> Track:
    """Count the samples since a role left the GPU that lives and is past its start: a starting role may come and go."""
    steady = scene.steady if scene.moving else scene.steady | {THE_RUN} if scene.steady else frozenset()
    if holder:
        return replace(track, held_by=holder if holder in steady else track.held_by, empty=0)
    left = holder is not None and track.held_by in steady
    return replace(track, empty=track.empty + 1 if left else 0)


def _count_foreign(track: Track, gpu: GpuSample, owners: Mapping[int, str | None]) -> Track:
    others = tuple(use.pid for use in gpu.uses or () if owners.get(use.pid) == FOREIGN)
    return replace(track, foreign=others, foreign_samples=track.foreign_samples + 1 if others else 0)


def _add_xid(memory: GpuHistory, error: Xid) -> GpuHistory:
    """The kernel's log and the driver's library both report it: it counts once, with the text of the log."""
    gpu = find_gpu(memory, error)
    if gpu is not None:
        error = replace(error, uuid=identify_gpu(gpu), pci=gpu.pci)
    memory = replace(memory, log_sequence=max(memory.log_sequence, error.log_sequence))
    same = next((x for x in memory.xids if (x.code, x.uuid or x.pci) == (error.code, error.uuid or error.pci)), None)
    if same is not None:
        if error.text and not same.text:
            return replace(memory, xids=tuple(replace(x, text=error.text) if x is same else x for x in memory.xids))
        return memory
    memory = replace(memory, xids=(*memory.xids, error))
    if gpu is not None and memory.attempt and xid(error.code).cause_class == "unknown":
        memory = replace(memory, program_xids=(*memory.program_xids, ProgramXid(memory.attempt, identify_gpu(gpu))))
    return memory
