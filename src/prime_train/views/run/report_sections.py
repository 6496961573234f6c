"""The report's sections on rewards, alarms, log warnings, deletions and changed settings. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from prime_train import events
from prime_train.core.units import counted, format_bytes, format_seconds
from prime_train.events import Record
from prime_train.supervise.core.event_text import describe
from prime_train.views.run.history import RunHistory, describe_scores
from prime_train.views.text import date, fenced, plain, sanitize, table

_LAST_RATIO = 0.1  # of the steps, which the table of rollouts compares with the first ones
# Column of metrics.jsonl -> what it is, and the decimals that are shown.
_ROLLOUTS = {
    "reward": ("mean reward", 3),
    "answer_tokens": ("answer tokens", 1),
    "entropy": ("entropy, nats per token", 3),
    "clip_ratio": ("clipped tokens", 4),
    "behind_steps": ("updates behind", 2),
    "reference_kl": ("divergence from the reference, nats per token", 5),
    "mismatch_kl": ("engine against trainer, nats per token", 6),
}
_COUNTS = {
    "rollouts": "scored",
    "truncated": "cut off by a token limit",
    "failed": "failed in an environment",
    "too_old": "dropped because their weights were too old",
}
_CONSEQUENCES = {
    "restart": "attempt {} was ended because of it",
    "pause": "the run was paused because of it",
    "leave": "the run left the machine because of it",
}


def rewards(history: RunHistory, image: str) -> Iterator[str]:
    """The paragraphs; none for a run without rewards and tasks. `image`: the plot, or what replaces it."""
    has_rewards = any(map(math.isfinite, history.metrics["reward"]))
    if not (has_rewards or history.task_evaluations or history.failed_rollouts):
        return
    yield "## Rewards"
    yield image
    for line in describe_scores(history):
        yield f"Held-out tasks of {line}."
    if history.task_evaluations:
        rows = [
            (f"{e.step:,}", e.environment, f"{e.reward:.3f}", f"{e.tasks:,}", f"{e.failed:,}", f"{e.answer_tokens:.1f}")
            for e in history.task_evaluations
        ]
        yield table(("step", "held-out tasks of", "mean reward", "tasks", "failed", "answer tokens"), rows)
    if has_rewards:
        yield _rollouts(history)
        yield _counts(history)
    yield from _failures(history)


def _rollouts(history: RunHistory) -> str:
    """Means over the first and the last tenth of the steps with rewards."""
    kept = [index for index, reward in enumerate(history.metrics["reward"]) if math.isfinite(reward)]
    count = max(1, round(_LAST_RATIO * len(kept)))
    rows = []
    for column, (name, digits) in _ROLLOUTS.items():
        ends = [[history.metrics[column][index] for index in part] for part in (kept[:count], kept[-count:])]
        means = [_mean(values) for values in ends]
        if any(mean is not None for mean in means):
            rows.append((name, *("" if mean is None else f"{mean:.{digits}f}" for mean in means)))
    steps = "first step" if count == 1 else f"first {count:,} steps"
    return table(("of the rollouts", steps, steps.replace("first", "last")), rows)


def _mean(values: list[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.fmean(finite) if finite else None


def _counts(history: RunHistory) -> str:
    sums = {name: sum(filter(math.isfinite, history.metrics[name])) for name in (*_COUNTS, "groups", "zero_groups")}
    parts = [f"{sums[name]:,.0f} {words}" for name, words in _COUNTS.items() if sums[name] or name == "rollouts"]
    sentence = f"Rollouts: {', '.join(parts)}."
    if sums["groups"]:
        equal = f"{sums['zero_groups']:,.0f} of {sums['groups']:,.0f} groups"
        sentence += f" {equal} had equal rewards, which teach nothing."
    return sentence


def _failures(history: RunHistory) -> Iterator[str]:
    """How many rollouts failed for which reason, and the first traceback of each environment."""
    if not history.failed_rollouts:
        return
    counts: Counter[tuple[str, str]] = Counter()
    traces: dict[str, str] = {}
    for event in history.failed_rollouts:
        counts[event.environment, event.reason] += event.failed
        if event.traceback:
            traces.setdefault(event.environment, event.traceback)
    yield "### Failed rollouts"
    rows = [(name, f"{failed:,}", reason) for (name, reason), failed in counts.most_common()]
    yield table(("environment", "failed", "first error"), rows)
    for name, trace in traces.items():
        yield f"First traceback of {plain(name)}:"
        yield fenced(sanitize(trace))


def changes(records: Iterable[Record], folder: Path) -> Iterator[str]:
    """Commands, settings that a person or the supervisor changed, files kept of ended attempts, and failed alerts."""
    failed: Counter[tuple[str, str]] = Counter()
    authors: dict[int, str] = {}
    reported: set[int] = set()  # an attempt that goes on after a change reports it again
    for record in records:
        match record.event:
            case events.BatchShrunk(attempt=attempt, micro_batch=micro_batch):
                yield f"After attempt {attempt} the micro-batch is {micro_batch}, because memory ran out."
            case events.SettingsAccepted(version=version, by=by, why=why):
                authors[version] = f" by {plain(by)}" + (f" ({plain(why)})" if why else "")
            case events.SettingsApplied(version=version, step=step, values=values) if version not in reported:
                reported.add(version)
                changed = f"settings version {version}{authors.get(version, '')}"
                yield f"From step {step:,} on {plain(', '.join(values))}: {changed}."
            case events.EventsDamaged(what=what):
                yield f"Some events could not be used, and the run went on from the rest: {plain(what)}."
            case events.GpuLeftOut(gpu=gpu, reason=reason):
                yield f"`{plain(gpu)}` is left out if enough other GPUs remain: {plain(reason)}."
            case (
                events.CommandAccepted() | events.GpuReturned() | events.GpuTested() | events.MachineRefused() as event
            ):
                yield f"{date(record.time_s)}: {plain(describe(event))}."
            case events.RequestAnswered(request="command_requested", outcome="failed", what=what):
                yield f"{date(record.time_s)}: a command could not be done: {plain(what)}."
            case events.EvidenceKept(attempt=attempt, folder=kept, items=items) if items:
                path = Path(kept)
                link = str(path.relative_to(folder)) if path.is_relative_to(folder) else kept
                written = f"Before attempt {attempt} was ended, [{link}]({link}) was written: {', '.join(items)}"
                yield f"{plain(written)}."
            case events.AlertSent(channel=channel, failed=reason) if reason:
                failed[channel, reason] += 1
    for (channel, reason), times in failed.items():
        yield f"{counted(times, 'alert')} by {channel} failed: {plain(reason)}."


def broken_clips(records: Iterable[Record]) -> Iterator[str]:
    """How many clips could not be decoded, by attempt, and a few names."""
    found = {
        (record.event.attempt, record.writer): record.event
        for record in records
        if isinstance(record.event, events.ClipsBroken)
    }
    if found:
        rows = [(str(at), f"{e.broken:,}", f"{e.read:,}", "; ".join(e.named)) for (at, _), e in sorted(found.items())]
        yield "### Broken clips"
        yield table(("attempt", "broken", "of clips", "for example"), rows)


def alarms(records: Sequence[Record]) -> Iterator[str]:
    """The table of alarms: one row per problem, however often it was found."""
    raised: dict[tuple[str, str, str], list[tuple[float, events.AlarmRaised]]] = {}
    cleared_s: dict[tuple[str, str, str], float] = {}
    for record in records:
        match record.event:
            case events.AlarmRaised(answer=answer) as alarm if answer != "note":
                key = (alarm.watch, alarm.name, alarm.subject)
                raised.setdefault(key, []).append((record.time_s, alarm))
                cleared_s.pop(key, None)
            case events.AlarmCleared(watch=watch, name=name, subject=subject):
                cleared_s[watch, name, subject] = record.time_s
    if raised:
        rows = [_alarm(times, cleared_s.get(key)) for key, times in raised.items()]
        yield "### Alarms"
        yield table(("first", "times", "watch", "what", "what to do", "then"), rows)


def _alarm(times: Sequence[tuple[float, events.AlarmRaised]], over_s: float | None) -> tuple[str, ...]:
    first_s, _ = times[0]
    last_s, alarm = times[-1]
    ended = sorted({each.attempt for _, each in times if each.answer == alarm.answer and each.attempt})
    then = _CONSEQUENCES.get(alarm.answer, "").format(", ".join(map(str, ended))) if ended else ""
    if not then and over_s is not None:
        then = f"over after {format_seconds(max(0.0, over_s - last_s))}"
    what = alarm.what if not alarm.subject or alarm.subject in alarm.what else f"{alarm.subject}: {alarm.what}"
    return (date(first_s), str(len(times)), alarm.watch, what, alarm.fix, then)


def skips(records: Iterable[Record]) -> Iterator[str]:
    """The steps that did not change the weights."""
    skipped = {record.event.step: record.event for record in records if isinstance(record.event, events.StepSkipped)}
    if skipped:
        yield f"### {counted(len(skipped), 'skipped step')}"
        yield table(("step", "why"), [(f"{step:,}", event.reason) for step, event in sorted(skipped.items())])


def warnings(records: Iterable[Record]) -> Iterator[str]:
    """Log lines that explain a slow run; each kind once."""
    seen: dict[str, events.LogNoticed] = {}
    for record in records:
        if isinstance(record.event, events.LogNoticed):
            seen.setdefault(record.event.signature, record.event)
    if seen:
        yield "### Warnings in the logs"
        rows = [(n.signature, n.what, f"{n.file}:{n.line}" if n.line else n.file) for n in seen.values()]
        yield table(("", "what", "where"), rows)


def deletions(records: Iterable[Record]) -> Iterator[str]:
    """What was deleted or packed to free disk space, and what was copied to a bucket or came from it.

    Also how many checkpoints the trainer's retention deleted.
    """
    freed: list[tuple[str, ...]] = []
    freed_bytes = by_trainer = 0
    packed: list[events.CheckpointPacked] = []
    copied: list[events.CheckpointBackedUp] = []
    restored: list[events.CheckpointRestored] = []
    for record in records:
        match record.event:
            case events.SpaceFreed(path=path, size_bytes=size, reason=reason, failed=failed):
                why = f"not deleted: {failed}" if failed else reason
                freed.append((date(record.time_s), Path(path).name, format_bytes(size), why))
                freed_bytes += 0 if failed else size
            case events.CheckpointDeleted():
                by_trainer += 1
            case events.CheckpointPacked(problem="") as done:
                packed.append(done)
            case events.CheckpointBackedUp(problem="") as copy:
                copied.append(copy)
            case events.CheckpointRestored() as found:
                restored.append(found)
    if freed:
        yield f"{format_bytes(freed_bytes)} were freed:"
        yield table(("when", "what", "size", "why"), freed)
    if by_trainer:
        yield f"The trainer deleted {counted(by_trainer, 'superseded checkpoint')}, as configured."
    if packed:
        before, after = sum(p.size_bytes for p in packed), sum(p.stored_bytes for p in packed)
        what = f"{counted(len(packed), 'superseded checkpoint')} packed without loss"
        yield f"{what}: {format_bytes(before)} to {format_bytes(after)}."
    if copied:
        stored = sum(copy.stored_bytes for copy in copied)
        what = f"{counted(len(copied), 'checkpoint')} backed up, {format_bytes(stored)}"
        yield f"{what}; the newest is of step {max(copy.step for copy in copied)}."
    for one in restored:
        yield f"The checkpoint of step {one.step} came from {plain(one.where)} in {format_seconds(one.seconds)}."
