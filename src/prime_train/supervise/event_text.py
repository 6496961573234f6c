"""Tells an event in one line of words. Pure; colour and layout are the business of views."""

from __future__ import annotations

from prime_train.events import (
    ActivitySeen,
    AlarmCleared,
    AlarmRaised,
    AlertSent,
    AttemptEnded,
    BatchShrunk,
    CheckpointDeleted,
    CheckpointPacked,
    CheckpointSaved,
    CheckpointStarted,
    CheckpointUnreadable,
    ChildStarted,
    ClockJumped,
    Evaluated,
    Event,
    EvidenceKept,
    GpuLeftOut,
    HangFound,
    LaunchAsked,
    LogNoticed,
    Phase,
    Progress,
    RunClosed,
    RunOpened,
    Sampled,
    ServiceReady,
    SignalSent,
    SpaceFreed,
    StopAsked,
    TrainerFailed,
    TrainerFinished,
    TrainerStarted,
    TrainerStopped,
    Unrecognised,
)
from prime_train.spec import ENDLESS_STEPS

_MIB = 2**20


def describe(event: Event) -> str:
    """The event in words; empty for what is shown as numbers instead (progress, samples)."""
    match event:
        case RunOpened(run=run, max_steps=max_steps):
            return f"run {run} opened" + (f", to step {max_steps}" if max_steps < ENDLESS_STEPS else "")
        case LaunchAsked() | ChildStarted() | HangFound() | SignalSent() | AttemptEnded() | StopAsked() | RunClosed():
            return _supervisors(event)
        case CheckpointStarted() | CheckpointSaved() | CheckpointDeleted() | CheckpointUnreadable():
            return _checkpoints(event)
        case TrainerStarted(rank=0) as e:
            return f"trainer ready: {e.params:,} parameters on {e.world_size} x {e.device}, {e.precision}"
        case Phase(name=name, detail=detail):
            return f"{name}: {detail}" if detail else name
        case Evaluated(step=step, loss=loss):
            return f"validation loss {loss:.4f} at step {step}"
        case TrainerFailed(what=what, rank=rank):
            return f"trainer failed (rank {rank}): {what}"
        case TrainerStopped(step=step):
            return f"trainer stopped at step {step}, checkpoint complete"
        case TrainerFinished(step=step, loss=loss):
            return f"trainer finished at step {step}, loss {loss:.4f}"
        case Progress() | Sampled() | TrainerStarted():
            return ""
        case ClockJumped(jump_s=jump_s):
            return f"the clock jumped by {jump_s:+.0f} s"
        case (
            ServiceReady()
            | AlarmRaised()
            | AlarmCleared()
            | AlertSent()
            | LogNoticed()
            | ActivitySeen()
            | EvidenceKept()
            | SpaceFreed()
            | CheckpointPacked()
            | GpuLeftOut()
            | BatchShrunk()
        ):
            return _watched(event)
        case Unrecognised(name=name):
            return f"event of a later version: {name}"


def _supervisors(
    event: LaunchAsked | ChildStarted | HangFound | SignalSent | AttemptEnded | StopAsked | RunClosed,
) -> str:
    match event:
        case LaunchAsked(attempt=attempt, resume_step=step, rejected=rejected):
            origin = f"resumes from step {step}" if step else "starts from the beginning"
            skipped = f"; not taken: {', '.join(rejected)}" if rejected else ""
            return f"attempt {attempt} {origin}{skipped}"
        case ChildStarted(role=role, pid=pid):
            return f"{role} started, pid {pid}"
        case HangFound(silent_s=silent_s, limit_s=limit_s, phase=phase):
            return f"no sign of life for {silent_s:.0f} s in phase {phase} (limit {limit_s:.0f} s)"
        case SignalSent(signal="stop_requested", reason=reason):
            return f"asked the trainer to checkpoint and stop: {reason}"
        case SignalSent(signal=signal, reason=reason):
            return f"sent {signal}: {reason}"
        case AttemptEnded(attempt=attempt, outcome=outcome, what=what):
            return f"attempt {attempt} {outcome}: {what}" if what else f"attempt {attempt} {outcome}"
        case StopAsked(by=by):
            return f"stop asked by {by}" if by.startswith("SIG") else f"paused: {by}"
        case RunClosed(state=state, reason=reason):
            return f"run {state}: {reason}" if reason else f"run {state}"


def _watched(
    event: ServiceReady
    | AlarmRaised
    | AlarmCleared
    | AlertSent
    | LogNoticed
    | ActivitySeen
    | EvidenceKept
    | SpaceFreed
    | CheckpointPacked
    | GpuLeftOut
    | BatchShrunk,
) -> str:
    match event:
        case ServiceReady(role=role, url=url, waited_s=waited_s):
            return f"{role} answers at {url} after {waited_s:.0f} s"
        case AlarmRaised(watch=watch, subject=subject, what=what):
            return f"{watch}: {what}" if subject in what else f"{watch}: {subject}: {what}"
        case AlarmCleared(watch=watch, name=name, subject=subject):
            over = f"over: {name.removeprefix(f'{watch}_').replace('_', ' ')}"
            return f"{watch}: {subject}: {over}" if subject else f"{watch}: {over}"
        case AlertSent(channel=channel, about=about, failed=failed):
            return f"alert by {channel} failed: {failed}" if failed else f"told by {channel}: {about}"
        case LogNoticed(what=what, file=file, line=line):
            return f"{what} ({file}:{line})"
        case ActivitySeen(what=what):
            return f"silent but not idle: {what}"
        case EvidenceKept(folder=folder, items=items):
            return f"evidence kept in {folder}: {', '.join(items)}"
        case SpaceFreed(path=path, size_bytes=size_bytes, reason=reason, failed=failed):
            freed = f"{size_bytes / _MIB:,.0f} MiB of {path}"
            return f"could not delete {freed}: {failed}" if failed else f"deleted {freed}: {reason}"
        case CheckpointPacked(step=step, problem=problem) if problem:
            return f"checkpoint of step {step} was not packed: {problem}"
        case CheckpointPacked() as packed:
            saved = 1 - packed.stored_bytes / packed.size_bytes if packed.size_bytes else 0.0
            return f"checkpoint of step {packed.step} packed in the background, {saved:.1%} smaller"
        case GpuLeftOut(gpu=gpu, reason=reason):
            return f"{gpu} is left out where enough others remain: {reason}"
        case BatchShrunk(micro_batch=micro_batch):
            return f"micro-batch {micro_batch} from here on, at the same global batch"


def _checkpoints(event: CheckpointStarted | CheckpointSaved | CheckpointDeleted | CheckpointUnreadable) -> str:
    match event:
        case CheckpointStarted(step=step):
            return f"checkpoint of step {step} begun"
        case CheckpointSaved(step=step, size_bytes=size_bytes, write_s=write_s, stall_s=stall_s):
            waited = f"training waited {stall_s * 1000:.0f} ms"
            return f"checkpoint of step {step} complete: {size_bytes / _MIB:.0f} MiB in {write_s:.1f} s, {waited}"
        case CheckpointDeleted(step=step, reason=reason):
            return f"checkpoint of step {step} deleted: {reason}"
        case CheckpointUnreadable(step=step, reason=reason):
            return f"checkpoint of step {step} cannot be loaded: {reason}"
