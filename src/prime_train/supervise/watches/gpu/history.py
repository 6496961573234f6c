"""What the GPU watch remembers from one look to the next, and how a sample changes it. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from prime_train.facts.gpus import visible_indices
from prime_train.registry.xids import xid
from prime_train.supervise.watches.gpu.samples import LOST, GpuSample, Heard, NoDriver, Reading, Refused, Use, Xid

# Bits of the reasons why a GPU is slow, nvml.h nvmlClocksEventReasons: hardware slowdown, thermal, power brake.
HOT = 0x8 | 0x40 | 0x80
WARM = 0x20  # the driver keeps the temperature: usual at full load
FOREIGN = ""  # the owner of a process that is not the run's
THE_RUN = "the run"  # the owner of one that is, and of which it is not known what role it came from
_LONGEST_LOOK_S = 5.0  # a supervisor that was stopped did not hear what its child said meanwhile


@dataclass(frozen=True, slots=True)
class Limits:
    """What the watch was told, and where it draws lines. `visible` as in CUDA_VISIBLE_DEVICES, None = all GPUs."""

    answer: Literal["alert", "restart"] = "restart"
    visible: str | None = None
    interval_s: float = 10.0
    slow_after_s: float = 60.0
    empty_bytes: int = 512 * 2**20  # a CUDA context alone takes about as much; NVIDIA resiliency extension, the same
    empty_samples: int = 3
    foreign_samples: int = 2

    @property
    def silent_after_s(self) -> float:
        return 3 * self.interval_s + 5.0


@dataclass(frozen=True, slots=True)
class Scene:
    """What the supervisor knows at a look. `now_s` by time.monotonic().

    `roles`: of the attempt's own children, by pid. `settled`: those roles that live, are past their start, and are in
    no phase in which they may give memory back. `moving`: one of them is in such a phase.
    """

    now_s: float
    attempt: int = 0  # 0 = none lives
    roles: Mapping[int, str] = field(default_factory=dict)
    settled: frozenset[str] = frozenset()
    moving: bool = False
    left_out: frozenset[str] = frozenset()  # UUIDs of GPUs that the run does not use any more


@dataclass(frozen=True, slots=True)
class Track:
    """One GPU over the attempt: its memory errors when it began, and since when or how often it is as it is."""

    sampled_s: float = 0.0
    errors_before: int | None = None
    failed_before: bool | None = None
    hot_since_s: float | None = None
    warm_since_s: float | None = None
    held_by: str = ""  # the role that held memory on it once it was past its start
    empty: int = 0  # samples in a row without
    foreign: tuple[int, ...] = ()  # pids
    foreign_samples: int = 0


@dataclass(frozen=True, slots=True)
class ProgramXid:
    """An error that is as likely of the program as of the GPU."""

    attempt: int
    gpu: str


@dataclass(frozen=True, slots=True)
class Memory:
    """The value before anything is heard is `Memory()`. What follows `known` is of the latest attempt alone."""

    looked_s: float | None = None
    silent_s: float = 0.0  # in which the supervisor listened
    log_sequence: int = -1
    no_driver: str = ""
    refused: str = ""
    comparable: bool = False  # the driver's process numbers are those of this machine
    program_xids: tuple[ProgramXid, ...] = ()
    known: tuple[GpuSample, ...] = ()  # every GPU that ever was there
    attempt: int = 0  # the latest, also where it lives no more
    gpus: tuple[GpuSample, ...] = ()  # as of the latest reading, those that are missing in it included
    tracks: Mapping[str, Track] = field(default_factory=dict)
    xids: tuple[Xid, ...] = ()


def key(gpu: GpuSample) -> str:
    """By what a GPU is told from others: its UUID, else its number."""
    return gpu.uuid or f"GPU {gpu.index}"


def owner(use: Use, roles: Mapping[int, str]) -> str | None:
    """The role that a process belongs to, FOREIGN, or None where there is no process of its number here."""
    if use.ancestors is None:
        return None
    role = next((roles[pid] for pid in (use.pid, *use.ancestors) if pid in roles), None)
    return role or (THE_RUN if use.marked else FOREIGN)


def used(memory: Memory, limits: Limits, left_out: frozenset[str]) -> frozenset[str]:
    """The keys of the GPUs that the run may use. Of parts of a GPU (MIG) it is not known where they lie: all."""
    gpus = sorted(memory.known, key=lambda gpu: gpu.index)
    if limits.visible is not None and "MIG-" in limits.visible:
        return frozenset(map(key, gpus)) - left_out
    chosen = visible_indices(limits.visible, [gpu.uuid for gpu in gpus])
    return frozenset(key(gpus[index]) for index in chosen) - left_out


def after(memory: Memory, heard: Sequence[Heard], scene: Scene, limits: Limits) -> Memory:
    """The memory after a look that brought `heard`."""
    listened_s = 0.0 if memory.looked_s is None else min(scene.now_s - memory.looked_s, _LONGEST_LOOK_S)
    memory = replace(memory, looked_s=scene.now_s, silent_s=memory.silent_s + max(0.0, listened_s))
    for said in heard:
        if isinstance(said, Xid):  # it came before this look, and so before an attempt that this look is the first of
            memory = _told(memory, said)
    memory = _of_attempt(memory, scene.attempt)
    for said in heard:
        match said:
            case Reading():
                memory = _read(memory, said, scene, limits)
            case NoDriver(why=why) if not memory.known:
                memory = replace(memory, no_driver=why)
            case NoDriver(why=why) | Refused(why=why):
                memory = replace(memory, refused=why, silent_s=0.0)
            case Xid():
                pass
    return memory


def _of_attempt(memory: Memory, attempt: int) -> Memory:
    """What was wrong in one attempt stands until the next begins: that is judged by what is heard in it."""
    if attempt in (0, memory.attempt):
        return memory
    return replace(memory, attempt=attempt, gpus=(), tracks={}, xids=())


def gpu_of(memory: Memory, said: Xid) -> GpuSample | None:
    """The GPU that an error was told of; None where it is none that was ever seen."""
    for gpu in memory.known:
        if (said.uuid and said.uuid == key(gpu)) or (said.pci and said.pci == gpu.pci):
            return gpu
    return None


# --- one reading -------------------------------------------------------------------------------------


def _read(memory: Memory, reading: Reading, scene: Scene, limits: Limits) -> Memory:
    known, gpus = _recognised(memory.known, reading.gpus)
    owners = {use.pid: owner(use, scene.roles) for gpu in gpus for use in gpu.uses or ()}
    comparable = memory.comparable or any(owners.values())
    if known != memory.known:  # an error may have been told before the GPU was
        early, memory = memory.xids, replace(memory, known=known, xids=())
        for said in early:
            memory = _told(memory, said)
    memory = replace(memory, gpus=gpus, comparable=comparable, silent_s=0.0, refused="")
    memory = replace(memory, log_sequence=max(memory.log_sequence, reading.log_sequence))
    tracks = dict(memory.tracks)
    for gpu in gpus:
        track = _measured(memory.tracks.get(key(gpu), Track()), gpu, reading.taken_s)
        holder = _holder(gpu, owners, limits, comparable=comparable)
        tracks[key(gpu)] = _shared(_held(track, holder, scene), gpu, owners if comparable else {})
    return replace(memory, tracks=tracks)


def _recognised(
    known: tuple[GpuSample, ...], seen: Iterable[GpuSample]
) -> tuple[tuple[GpuSample, ...], tuple[GpuSample, ...]]:
    """Every GPU that ever was there, and what is said of each. One that is not listed any more is lost.

    A GPU that is lost may come without a UUID, and takes that of the one that had its number; where the driver leaves
    it out altogether, the numbers of those behind it change: these keep the number that they came with.
    """
    found = {key(gpu): gpu for gpu in known}
    said: dict[str, GpuSample] = {}
    for gpu in seen:
        if not gpu.uuid:
            before = next((other for other in known if other.index == gpu.index), gpu)
            gpu = replace(gpu, uuid=before.uuid, pci=before.pci)
        else:
            gpu = replace(gpu, index=found[gpu.uuid].index if gpu.uuid in found else gpu.index)
            found.pop(f"GPU {gpu.index}", None)  # it was lost when the watch began, and is back
        found.setdefault(key(gpu), GpuSample(gpu.index, gpu.uuid, gpu.pci))
        said[key(gpu)] = gpu
    ordered = tuple(sorted(found.values(), key=lambda gpu: gpu.index))
    return ordered, tuple(said.get(key(gpu)) or replace(gpu, fault=LOST) for gpu in ordered)


def _measured(track: Track, gpu: GpuSample, taken_s: float) -> Track:
    errors = track.errors_before
    if gpu.uncorrected_errors is not None and (errors is None or gpu.uncorrected_errors < errors):
        errors = gpu.uncorrected_errors  # a driver that was loaded again counts from zero
    reasons = gpu.slow_reasons or 0
    return replace(
        track,
        sampled_s=taken_s,
        errors_before=errors,
        failed_before=gpu.remap_failed if track.failed_before is None else track.failed_before,
        hot_since_s=(track.hot_since_s or taken_s) if reasons & HOT else None,
        warm_since_s=(track.warm_since_s or taken_s) if reasons & WARM else None,
    )


def _holder(gpu: GpuSample, owners: Mapping[int, str | None], limits: Limits, *, comparable: bool) -> str | None:
    """Who of the run holds memory on a GPU, "" where nobody does, None where that is not known.

    Where the driver counts processes by the numbers of another namespace, whoever holds memory counts as the run.
    """
    if comparable and gpu.uses is not None:
        return next((name for use in gpu.uses if (name := owners.get(use.pid))), "")
    if gpu.used_bytes is None:
        return None
    return THE_RUN if gpu.used_bytes >= limits.empty_bytes else ""


def _held(track: Track, holder: str | None, scene: Scene) -> Track:
    """Whether the GPU was left by a role that lives and is past its start: one that starts may come and go."""
    settled = scene.settled if scene.moving else scene.settled | {THE_RUN} if scene.settled else frozenset()
    if holder:
        return replace(track, held_by=holder if holder in settled else track.held_by, empty=0)
    left = holder is not None and track.held_by in settled
    return replace(track, empty=track.empty + 1 if left else 0)


def _shared(track: Track, gpu: GpuSample, owners: Mapping[int, str | None]) -> Track:
    others = tuple(use.pid for use in gpu.uses or () if owners.get(use.pid) == FOREIGN)
    return replace(track, foreign=others, foreign_samples=track.foreign_samples + 1 if others else 0)


# --- one error of the driver -------------------------------------------------------------------------


def _told(memory: Memory, said: Xid) -> Memory:
    """The kernel's log and the driver's library both tell it: it counts once, with the words of the log."""
    gpu = gpu_of(memory, said)
    if gpu is not None:
        said = replace(said, uuid=key(gpu), pci=gpu.pci)
    memory = replace(memory, log_sequence=max(memory.log_sequence, said.log_sequence))
    same = next((x for x in memory.xids if (x.code, x.uuid or x.pci) == (said.code, said.uuid or said.pci)), None)
    if same is not None:
        if said.text and not same.text:
            return replace(memory, xids=tuple(replace(x, text=said.text) if x is same else x for x in memory.xids))
        return memory
    memory = replace(memory, xids=(*memory.xids, said))
    if gpu is not None and memory.attempt and xid(said.code).cause_class == "unknown":
        memory = replace(memory, program_xids=(*memory.program_xids, ProgramXid(memory.attempt, key(gpu))))
    return memory
