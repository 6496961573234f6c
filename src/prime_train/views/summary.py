"""Summarizes a run in a few lines when it ends. Writes nothing."""

from __future__ import annotations

from prime_train.programs import recorded
from prime_train.rundir import RunDir
from prime_train.supervise.resume_choice import newest_complete
from prime_train.units import format_seconds
from prime_train.views.history import History, Restart, gather

_SAMPLE_LINES = 8


def summarize(run_dir: RunDir, again: str, longer: str) -> tuple[str, list[tuple[str, str]]]:
    """A title, and label and text of each line.

    `again`: the command that continues the run; `longer`: the same command for twice as many steps.
    """
    run = gather(run_dir)
    state = run.state
    title = f"{run.name} {state.state}: {state.stands_at} in {format_seconds(run.worked_s)}"
    lines: list[tuple[str, str]] = []
    failed = state.attempt
    if state.state == "failed" and failed is not None:
        lines += [
            ("what", state.reason or failed.what),
            ("why", failed.why),
            ("fix", failed.fix),
            ("see", failed.where),
        ]
    lines += [(f"restart {number}", _restart(restart)) for number, restart in enumerate(run.restarts, start=1)]
    if run.evaluations:
        lines.append(("held-out loss", _held_out(run)))
    if state.newest_complete:
        program, spec = recorded(run_dir, strict=False)
        newest = newest_complete(program.checkpoints(spec, run_dir))
        where = newest.path if newest is not None else run_dir.checkpoint(state.newest_complete)
        lines.append(("checkpoint", run_dir.relative(where)))
    if run_dir.final.is_dir():
        lines.append(("final model", run_dir.relative(run_dir.final)))
    if state.samples:
        lines.append(("sample", _sample(state.samples[0].prompt + state.samples[0].text)))
    for label, path in (("plot", run_dir.plots / "loss.png"), ("report", run_dir.report)):
        if path.exists():
            lines.append((label, run_dir.relative(path)))
    if state.state != "finished":
        lines.append(("continue", again))
    else:
        lines.append(("train longer", longer))
    return title, [(label, words) for label, words in lines if words]


def _restart(restart: Restart) -> str:
    waited = "" if restart.waited_s is None else f" {format_seconds(restart.waited_s)} later"
    origin = f"step {restart.followed.resume_step:,}" if restart.followed.resume_step else "the beginning"
    died = f"step {restart.failed.last_step:,}"
    what = restart.failed.what if died in restart.failed.what else f"{restart.failed.what} at {died}"
    return f"{what}; resumed{waited} from {origin}"


def _held_out(run: History) -> str:
    first, last = run.evaluations[0].loss, run.evaluations[-1].loss
    text = f"{first:.4f} -> {last:.4f}"
    if run.vocab_loss is not None:
        text += f", {1 - last / run.vocab_loss:.0%} below ln(vocabulary) = {run.vocab_loss:.4f}"
    return text


def _sample(text: str) -> str:
    lines = text.rstrip().split("\n")
    return "\n".join(lines[:_SAMPLE_LINES] + (["..."] if len(lines) > _SAMPLE_LINES else []))
