"""Writes report.md: what ran, what happened and how to continue. Reads events and metrics, never the model."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from prime_train.core.installation import install_command
from prime_train.core.redaction import own_secrets, redact
from prime_train.core.rundir import RunDir, write_atomic
from prime_train.core.units import counted, format_bytes, format_count, format_seconds
from prime_train.spec import RunSpec
from prime_train.supervise.core.state import AttemptState
from prime_train.views.run import measures
from prime_train.views.run.history import PHASES, RestartGap, RunHistory, gather
from prime_train.views.run.report_sections import alarms, broken_clips, changes, deletions, rewards, skips, warnings
from prime_train.views.text import date, fenced, plain, table

_PHASE_NAMES = {
    "rollouts_s": "wait for rollouts",
    "data_s": "wait for data",
    "forward_backward_s": "forward and backward",
    "optimizer_s": "optimizer",
    "weights_s": "weights to the engine",
    "checkpoint_s": "wait for a checkpoint",
}
_NO_PLOTS = "*Plots need matplotlib: `{install}`, then `prime-train report {name}`.*"


def write(run_dir: RunDir) -> None:
    """Writes the report of a run into its directory."""
    write_into(run_dir.path, gather(run_dir))


def write_into(folder: Path, history: RunHistory) -> tuple[Path, Sequence[str]]:
    """Writes report.md and plots/, each file at once. Raises OSError.

    Returns the path of report.md, and the paths of the plots relative to its folder.
    """
    from prime_train.views.run import plots

    target = RunDir(folder)
    try:
        drawn = [str(path.relative_to(folder)) for path in plots.draw(history, target.plots)]
        remark = "" if drawn else "*No step was recorded yet.*"
    except ImportError:
        drawn, remark = [], _NO_PLOTS.format(name=history.path.name, install=install_command("train"))
    write_atomic(target.report, redact(text(history, drawn, remark), own_secrets()))
    return target.report, drawn


def text(history: RunHistory, plots: Sequence[str], remark: str) -> str:
    """The report. `plots`: paths relative to it; `remark` replaces missing plots."""
    images = dict.fromkeys(("loss", "throughput"), remark)
    for path in plots:
        name = path.rpartition("/")[2].removesuffix(".png")
        images[name] = f"![{name}]({path})"
    sections = [
        f"# Run {plain(history.name)}",
        outcome(history),
        table(("", ""), _what_ran(history)),
        *rewards(history, images.get("reward", "")),
        "## Loss",
        images["loss"],
        held_out(history),
        _evaluations(history) if history.evaluations or not history.task_evaluations else "",
        measures.section(history.measured),
        images.get("measured", ""),
        *broken_clips(history.records),
        *(("## Clips", images["spectrograms"]) if "spectrograms" in images else ()),
        "## Speed",
        images["throughput"] if plots else "",
        _speed(history),
        _phases(history),
        "## What happened",
        *_happened(history),
        "## Checkpoints",
        _checkpoints(history),
        *deletions(history.records),
        *_samples(history),
        "## Continue",
        _commands(history),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


# --- what ran and how it ended ---------------------------------------------------------------------


def outcome(history: RunHistory) -> str:
    """One sentence: the state, the steps, the time, the restarts."""
    state = history.state
    word = state.state if state.closed else f"not over ({history.word})"
    sentence = f"**{word}**: {state.progress_text} in {format_seconds(history.worked_s)}"
    sentence += f", {counted(state.attempt_number, 'attempt')}, {counted(state.restarts, 'restart')}"
    if state.closed and state.exit_code:
        sentence += f"; exit code {state.exit_code}: {plain(state.reason)}"
    return sentence + "."


def held_out(history: RunHistory) -> str:
    """The first and the last held-out loss, and how far it fell; empty before the first evaluation."""
    if not history.evaluations:
        return ""
    first, last = history.evaluations[0], history.evaluations[-1]
    sentence = f"Held-out loss: {first.loss:.4f} at step {first.step:,} -> {last.loss:.4f} at step {last.step:,}"
    if history.vocab_loss is not None:
        fell = 1 - last.loss / history.vocab_loss
        side = "below" if fell >= 0 else "above"
        sentence += f", {abs(fell):.0%} {side} the {history.vocab_loss:.4f} of a uniform guess, {history.guess_name}"
    return sentence + "."


def _what_ran(history: RunHistory) -> list[tuple[str, str]]:
    asked, started = history.asked, history.state.started
    rows = [("started", date(history.began_s)), ("last event", date(history.ended_s))]
    if started is not None:
        ranks = f"{started.world_size} x " if started.world_size > 1 else ""
        rows.append(("model", f"{format_count(started.params)} parameters{_sizes(asked) if asked else ''}"))
        if asked is None or asked.audio is None:
            rows.append(("vocabulary", f"{started.vocab_size:,}"))
        rows.append(("device", f"{ranks}{started.device}, {started.precision}"))
    if asked is not None:
        sources = ", ".join(f"{source.kind} {source.path or ''}".rstrip() for source in asked.data.sources)
        tasks = ", ".join(task.id or task.kind for task in asked.tasks)
        named = "; ".join(part for part in (sources, f"tasks: {tasks}" if tasks else "") if part)
        length = (
            f"{asked.data.ctx_tokens:,} tokens per sequence" if asked.audio is None else f"{asked.audio.clip_s:g} s"
        )
        rows.append(("data", f"{named}; {length}"))
        name = "Muon and AdamW" if asked.optim.kind == "muon" else "AdamW"
        rows.append(("optimizer", f"{name}, learning rate {asked.optim.lr:g}, {asked.schedule.kind}"))
    rows.append((f"{history.state.unit} seen", format_count(history.state.tokens_seen)))
    rows.append(("config", "[config.toml](config.toml); with all defaults: [resolved.json](resolved.json)"))
    return rows


def _sizes(asked: RunSpec) -> str:
    model = asked.model
    if asked.audio is not None:
        encoder, objective = asked.audio.encoder, asked.audio.objective.replace("_", " ")
        return f", {encoder.layers} layers of width {encoder.width}, {encoder.heads} heads, {objective}"
    if model.path:
        return f", from {model.path}"
    return f", {model.layers} layers of width {model.hidden_size}, {model.heads} heads"


def _evaluations(history: RunHistory) -> str:
    rows = [(f"{e.step:,}", f"{e.loss:.4f}", f"{e.tokens:,}") for e in history.evaluations]
    return table(("step", "held-out loss", history.state.unit), rows) if rows else "No evaluation was made."


# --- speed -----------------------------------------------------------------------------------------


def _speed(history: RunHistory) -> str:
    metrics = history.metrics
    speeds = _finite(metrics["tokens_per_s"])
    if not speeds:
        return "No step was recorded."
    sentence = (
        f"Median {format_count(round(statistics.median(speeds)))} {history.state.unit}/s over {len(speeds):,} steps"
    )
    memory, mfu = _finite(metrics["peak_memory_gib"]), _finite(metrics["mfu"])
    if mfu:
        sentence += f", {statistics.median(mfu):.0%} of the device's peak (MFU)"
    if memory:
        sentence += f"; at most {max(memory):.2f} GiB in rank 0"
    return sentence + "."


def _phases(history: RunHistory) -> str:
    """The time of each phase of a step: the mean, because means add up to the whole step, and the 99th percentile."""
    first_steps = {attempt.resume_step + 1 for attempt in history.state.attempts}  # they wait for the first batch
    kept = [index for index, step in enumerate(history.metrics["step"]) if int(step) not in first_steps]
    columns = {name: _finite(history.metrics[name][index] for index in kept) for name in (*PHASES, "step_s")}
    total_s = sum(columns["step_s"])
    if not total_s:
        return ""
    rows = [
        (
            _PHASE_NAMES.get(name, "whole step"),
            _ms(statistics.fmean(values)),
            _ms(sorted(values)[int(0.99 * (len(values) - 1))]),
            f"{sum(values) / total_s:.1%}",
        )
        for name, values in columns.items()
        if values
    ]
    note = "The first step of each attempt is left out, because it waits for the first batch."
    return f"{table(('phase of a step', 'mean', '99th percentile', 'share'), rows)}\n\n{note}"


# --- what happened ---------------------------------------------------------------------------------


def _happened(history: RunHistory) -> Iterable[str]:
    rows = [
        (
            str(attempt.number),
            date(attempt.launched_s),
            attempt.describe_origin(),
            f"{attempt.last_step:,}",
            attempt.outcome or "not over",
            attempt.what,
        )
        for attempt in history.state.attempts
    ]
    yield table(("attempt", "started", "from step", "to step", "ended", "cause"), rows) if rows else "No attempt."
    for restart in history.restarts:
        yield _restart(restart)
    last = history.state.attempt
    if last is not None and last.outcome == "failed":
        yield f"{_failure(last)} {_advice(last.why, last.fix)}"
    yield from changes(history.records, history.path)
    yield from alarms(history.records)
    yield from skips(history.records)
    yield from warnings(history.records)


def _restart(restart: RestartGap) -> str:
    failed, followed = restart.failed, restart.followed
    waited = "" if restart.waited_s is None else f" {format_seconds(restart.waited_s)} after the failure"
    origin = followed.describe_origin("the checkpoint of step")
    text = f"{_failure(failed)} {_advice(failed.why, failed.fix)} Attempt {followed.number} started{waited}"
    text += f" from {origin}" + (f"; {counted(restart.steps_redone, 'step')} repeated." if followed.knows_step else ".")
    if followed.rejected:
        text += " Newer checkpoints were rejected: " + "; ".join(f"`{plain(r)}`" for r in followed.rejected) + "."
    return text


def _failure(failed: AttemptState) -> str:
    return f"**Attempt {failed.number} failed at step {failed.last_step:,}: {plain(failed.what)}.**"


def _advice(why: str, fix: str) -> str:
    return " ".join(f"{plain(part)[:1].upper()}{plain(part)[1:]}." for part in (why, fix) if part)


def _checkpoints(history: RunHistory) -> str:
    rows = [
        (f"{save.step:,}", format_bytes(save.size_bytes), _ms(save.stall_s), format_seconds(save.write_s))
        for save in history.saves
    ]
    newest = "" if history.newest_complete is None else f"Newest complete: step {history.newest_complete:,}."
    if not rows:
        return newest or "None was saved."
    return table(("step", "size", "training waited", "write time"), rows) + f"\n\n{newest}"


def _samples(history: RunHistory) -> Iterable[str]:
    if history.state.samples:
        yield f"## Samples of step {history.state.samples[-1].step:,}"
    for sampled in history.state.samples:
        yield fenced(f"{sampled.prompt}{sampled.text}")


def _commands(history: RunHistory) -> str:
    name = history.name
    resume = f"prime-train run {shlex.quote(str(history.path / 'config.toml'))}"
    if history.started_in:
        resume = f"cd {shlex.quote(history.started_in)} && {resume}"
    rows = [
        (resume, "continue; for more steps add --set run.max_steps=N"),
        (f"prime-train logs {name}", "what the trainer printed"),
        (f"prime-train ckpt verify {name}", "read every byte of every checkpoint"),
    ]
    width = max(len(command) for command, _ in rows)
    lines = "\n".join(f"{command:<{width}}   # {remark}" for command, remark in rows)
    return fenced(lines)


def _finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if value - value == 0]  # neither nan nor infinite


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 10 else format_seconds(seconds)
