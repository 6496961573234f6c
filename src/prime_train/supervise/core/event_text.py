"""Describes events in one line, and builds the alerts for the important ones. Pure; layout belongs to views."""

from __future__ import annotations

from typing import Any, NamedTuple

from prime_train import events
from prime_train.core.machines import find_machine
from prime_train.events import AlarmRaised, AttemptEnded, Event, GpuLeftOut, RunClosed
from prime_train.spec import ENDLESS_STEPS
from prime_train.supervise.core.fold_instability import describe_proposal
from prime_train.supervise.core.state import ASKERS, State

_MIB = 2**20


def describe(event: Event) -> str:
    """The event as one line; empty for events that are shown as numbers (progress, samples)."""
    if isinstance(event, events.Progress):  # first, as nearly all events are of this kind
        return ""
    return _describe_run(event) or _describe_trainer(event) or _describe_watch(event) or _describe_backup(event)


def _describe_backup(event: Event) -> str:
    match event:
        case events.CheckpointBackedUp(step=step, problem=problem) if problem:
            subject = f"checkpoint of step {step}" if step else "the checkpoints"
            return f"{subject} could not be backed up: {problem}"
        case events.CheckpointBackedUp() as done:
            stored = f"{done.stored_bytes / _MIB:,.0f} MiB"
            return f"checkpoint of step {done.step} backed up: {stored} in {done.seconds:.1f} s"
        case events.BackupPruned(step=step, reason=reason):
            return f"backup of step {step} deleted: {reason}"
        case events.BackupFlushBegun(step=step, limit_s=limit_s):
            return f"backing up the checkpoint of step {step} before the end, for at most {limit_s:.0f} s"
        case events.CheckpointRestored(step=step, where=where, seconds=seconds):
            return f"checkpoint of step {step} restored from {where} in {seconds:.1f} s"
        case _:
            return ""


def _describe_run(event: Event) -> str:
    match event:
        case events.RunOpened(run=run, max_steps=max_steps):
            return f"run {run} opened" + (f", to step {max_steps}" if max_steps < ENDLESS_STEPS else "")
        case events.EventsDamaged(what=what):
            return f"some events cannot be used: {what}"
        case events.ClockJumped(jump_s=jump_s):
            return f"the clock jumped by {jump_s:+.0f} s"
        case events.Unrecognised(name=name):
            return f"event of a later version: {name}"
        case events.LaunchAsked(attempt=attempt, resume_step=step, rejected=rejected, knows_step=knows_step):
            origin = f"resumes from step {step}" if step else "starts from the beginning"
            origin = origin if step or knows_step else "starts; from which step is not known"
            skipped = f"; not taken: {', '.join(rejected)}" if rejected else ""
            return f"attempt {attempt} {origin}{skipped}"
        case events.ChildStarted(role=role, pid=pid):
            return f"{role} started, pid {pid}"
        case events.HangFound(silent_s=silent_s, limit_s=limit_s, phase=phase):
            return f"no sign of life for {silent_s:.0f} s in phase {phase} (limit {limit_s:.0f} s)"
        case events.SignalSent(signal="stop_requested", reason=reason):
            return f"asked the trainer to checkpoint and stop: {reason}"
        case events.SignalSent(signal="save_requested", reason=reason):
            return f"asked the trainer to checkpoint and go on: {reason}"
        case events.SignalSent(signal=signal, reason=reason):
            return f"sent {signal}: {reason}"
        case events.AttemptEnded(attempt=attempt, outcome=outcome, what=what):
            return f"attempt {attempt} {outcome}: {what}" if what else f"attempt {attempt} {outcome}"
        case events.StopAsked(by=by):
            return f"stop asked by {by}" if by.startswith(ASKERS) else f"paused: {by}"
        case events.RequestRefused(file=file, reason=reason):
            return f"attempts/{file} is no request: {reason}"
        case events.RequestAnswered(outcome=outcome, what=what):
            return f"request {outcome}: {what}"
        case events.SettingsAccepted(version=version, values=values, by=by, why=why):
            return f"settings version {version} by {by}: {', '.join(values)}" + (f" ({why})" if why else "")
        case events.CommandAccepted(command=command, by=by, step=step, why=why, gpus=gpus):
            named = f"go back to step {step}" if command == "go_back" else " ".join((command.replace("_", " "), *gpus))
            return f"{named} asked by {by}" + (f": {why}" if why else "")
        case events.RunClosed(state=state, reason=reason):
            return f"run {state}: {reason}" if reason else f"run {state}"
        case events.ServiceReady(role=role, url=url, waited_s=waited_s):
            return f"{role} answers at {url} after {waited_s:.0f} s"
        case events.GpuLeftOut(gpu=gpu, reason=reason):
            return f"{_describe_left_out(gpu)}: {reason}"
        case events.GpuReturned(gpu=gpu, reason=reason):
            return f"{gpu} is used again from the next attempt on: {reason}"
        case events.GpuTestBegun(gpus=gpus):
            return f"testing {', '.join(gpus)}"
        case events.GpuTested(gpu=gpu, passed=passed, what=what, seconds=seconds):
            return f"{gpu} {'passed' if passed else 'failed'} its test in {seconds:.1f} s: {what}"
        case events.MachineRefused(machine=machine, gpus=gpus):
            return f"the rented machine {machine} is given back: {', '.join(gpus)} is condemned"
        case events.CheckpointSetAside(path=path, problem=problem, to=to, tracked=None):
            return f"{path} is not whole ({problem}): kept as {to}"
        case events.CheckpointSetAside(problem=problem, to=to, tracked=tracked):
            return f"{to} names step {tracked} now: {problem}"
        case events.BatchShrunk(micro_batch=micro_batch):
            return f"micro-batch {micro_batch} from here on, at the same global batch"
        case _:
            return ""


def _describe_trainer(event: Event) -> str:
    match event:
        case events.TrainerStarted(rank=0) as e:
            return f"trainer ready: {e.params:,} parameters on {e.world_size} x {e.device}, {e.precision}"
        case events.Phase(name=name, detail=detail):
            return f"{name}: {detail}" if detail else name
        case events.Evaluated(step=step, loss=loss):
            return f"validation loss {loss:.4f} at step {step}"
        case events.Measured(step=step, name=name, metric=metric, value=value):
            return f"{name}: {metric} {value:.4f} at step {step}"
        case events.ClipsBroken(broken=broken, read=read, named=named):
            first = f"; for example {named[0]}" if named else ""
            return f"{broken:,} of {read:,} clips could not be decoded{first}"
        case events.TasksEvaluated() as e:
            failed = f", {e.failed} failed" if e.failed else ""
            return f"{e.environment}: mean reward {e.reward:.3f} on {e.tasks} held-out tasks{failed} at step {e.step}"
        case events.SettingsApplied(version=version, step=step, values=values):
            return f"settings version {version} in force from step {step} on: {', '.join(values)}"
        case events.StopListened():
            return "the trainer looks for stop requests itself"
        case events.SaveListened():
            return "the trainer looks for requests to save"
        case events.StepSkipped(step=step, reason=reason):
            return f"step {step} was skipped: {reason}"
        case events.RolloutsFailed() as e:
            return f"{e.environment}: {e.failed} of {e.asked} rollouts failed: {e.reason}"
        case events.TrainerFailed(what=what, rank=rank):
            return f"trainer failed (rank {rank}): {what}"
        case events.TrainerStopped(step=0):
            return "trainer stopped before its first step, nothing is saved"
        case events.TrainerStopped(step=step):
            return f"trainer stopped at step {step}, checkpoint complete"
        case events.TrainerFinished(step=step, loss=loss):
            return f"trainer finished at step {step}, loss {loss:.4f}"
        case events.CheckpointPacked(step=step, problem=problem) if problem:
            return f"checkpoint of step {step} was not packed: {problem}"
        case events.CheckpointPacked() as packed:
            saved = 1 - packed.stored_bytes / packed.size_bytes if packed.size_bytes else 0.0
            return f"checkpoint of step {packed.step} packed in the background, {saved:.1%} smaller"
        case events.CheckpointStarted(step=step):
            return f"checkpoint of step {step} begun"
        case events.CheckpointSaved(step=step, size_bytes=size_bytes, write_s=write_s, stall_s=stall_s):
            waited = f"training waited {stall_s * 1000:.0f} ms"
            return f"checkpoint of step {step} complete: {size_bytes / _MIB:.0f} MiB in {write_s:.1f} s, {waited}"
        case events.CheckpointPinned(step=step, pinned=pinned, by=by):
            return f"checkpoint of step {step:,} {'pinned' if pinned else 'no longer pinned'} by {by}"
        case events.CheckpointDeleted(step=step, reason=reason):
            return f"checkpoint of step {step} deleted: {reason}"
        case events.CheckpointUnreadable(step=step, reason=reason):
            return f"checkpoint of step {step} cannot be loaded: {reason}"
        case events.ReplicasJoined(step=step, members=members, replicas=replicas):
            return f"after step {step} train {len(members)} of {replicas} replicas: {', '.join(members)}"
        case events.ReplicaLost(replica=replica, step=step, what=what, restart_s=restart_s):
            again = f"starts again in {restart_s:.0f} s" if restart_s else "starts again"
            return f"replica {replica} was lost after step {step} and {again}: {what}"
        case events.LighthouseLost(what=what):
            return f"the lighthouse of the replicas was lost and another one started: {what}"
        case _:
            return ""


def _describe_watch(event: Event) -> str:
    match event:
        case events.AlarmRaised(watch=watch, subject=subject, what=what):
            return f"{watch}: {what}" if subject in what else f"{watch}: {subject}: {what}"
        case events.AlarmCleared(watch=watch, name=name, subject=subject):
            over = f"over: {name.removeprefix(f'{watch}_').replace('_', ' ')}"
            return f"{watch}: {subject}: {over}" if subject else f"{watch}: {over}"
        case events.AlertSent(channel=channel, about=about, failed=failed):
            return f"alert by {channel} failed: {failed}" if failed else f"alert sent by {channel}: {about}"
        case events.LogNoticed(what=what, file=file, line=line):
            return f"{what} ({file}:{line})" if line else what
        case events.InstabilityFound(what=what, auto=auto, why=why) as found:
            change = describe_proposal(found)
            if not change:
                return f"unstable: {what}; {why}"
            return f"unstable: {what}; {'the policy makes' if auto else 'proposed'}: {change}" + (
                f" ({why})" if why else ""
            )
        case events.ActivitySeen(what=what):
            return f"silent but not idle: {what}"
        case events.EvidenceKept(folder=folder, items=items):
            return f"evidence kept in {folder}: {', '.join(items)}"
        case events.SpaceFreed(path=path, size_bytes=size_bytes, reason=reason, failed=failed):
            freed = f"{size_bytes / _MIB:,.0f} MiB of {path}"
            return f"could not delete {freed}: {failed}" if failed else f"deleted {freed}: {reason}"
        case _:
            return ""


_PARTS = ("what", "why", "fix", "where")


class Alert(NamedTuple):
    """`about` is the key by which a repeated alert is recognised."""

    about: str
    document: dict[str, Any]
    is_end: bool = False  # the end of the run, which is never held back


def build_alert(event: Event, state: State) -> Alert | None:
    """The alert for an event, with the state after it; None for an event that needs no alert."""
    match event:
        case AlarmRaised(answer=answer) as alarm if answer != "note":
            about = ": ".join(part for part in (alarm.watch, alarm.name, alarm.subject) if part)
            named = {"watch": alarm.watch, "name": alarm.name, "subject": alarm.subject, "answer": answer}
            return _build(about, event, state, "alarm", named)
        case events.InstabilityFound(number=number, what=what, why=why, auto=auto) as found:
            change = describe_proposal(found)
            fix = f"prime-train set {state.run} --accept" if change and not auto else ""
            texts = {"what": what, "why": why or f"{'made' if auto else 'proposed'}: {change}", "fix": fix, "where": ""}
            return _build(f"instability {number}", event, state, "instability", texts)
        case AttemptEnded(outcome="failed", attempt=attempt, cause_class=cause_class, cause_id=cause_id):
            ended: dict[str, Any] = {"class": cause_class, "id": cause_id, "newest_checkpoint": event.newest_complete}
            return _build(f"attempt {attempt} failed", event, state, "attempt_failed", ended)
        case GpuLeftOut(gpu=gpu, reason=reason):
            parts = {"what": _describe_left_out(gpu), "why": reason, "fix": "", "where": gpu}
            return _build(f"{gpu} is left out", event, state, "gpu_left_out", parts)
        case RunClosed(state=end, reason=reason, exit_code=exit_code):
            parts = {"what": f"the run has {end}", "why": reason, "fix": "", "where": ""}
            closing = _build(f"run {end}", event, state, f"run_{end}", parts | {"exit_code": exit_code})
            return closing._replace(is_end=True)
        case _:
            return None


def _build(about: str, event: Event, state: State, kind: str, more: dict[str, Any]) -> Alert:
    parts = {name: getattr(event, name, "") for name in _PARTS}
    document = {
        "kind": kind,
        "run": state.run,
        "step": state.step,
        "max_steps": state.max_steps,
        "attempt": state.attempt_number,
        **parts,
        **more,
        "commands": list(_list_commands(state)),
    }
    return Alert(about, document | {"text": _format_text(about, document, state.progress_text)})


def _list_commands(state: State) -> tuple[str, ...]:
    name = state.run
    look = (f"prime-train status {name}", f"prime-train diagnose {name}", f"prime-train logs {name}")
    return (*look, f"prime-train report {name}") if state.closed else (*look, f"prime-train stop {name}")


def _format_text(about: str, document: dict[str, Any], progress_text: str) -> str:
    head = f"{document['run'] or 'run'}, {progress_text}: {about}"
    return "\n".join((head, *(f"{name}: {document[name]}" for name in _PARTS if document[name])))


def _describe_left_out(gpu: str) -> str:
    if find_machine(gpu) >= 0:
        return f"{gpu} is taken out, and the run stays paused until it is returned"
    return f"{gpu} is left out where enough others remain"
