"""Tells in a few lines what a run came to, when it ends. Reads only."""

from __future__ import annotations

from prime_train.programs import recorded
from prime_train.rundir import RunDir
from prime_train.supervise.resume_choice import newest_complete
from prime_train.units import format_seconds
from prime_train.views import history

_SAMPLE_LINES = 8


def gather(run_dir: RunDir, again: str, longer: str) -> tuple[str, list[tuple[str, str]]]:
    """A title, and label and text of each line.

    `again` is the command that goes on with the run, `longer` the same for twice as many steps.
    """
    told = history.gather(run_dir)
    state = told.state
    title = f"{told.name} {state.state}: {state.stands_at} in {format_seconds(told.worked_s)}"
    lines: list[tuple[str, str]] = []
    failed = state.attempt
    if state.state == "failed" and failed is not None:
        lines += [
            ("what", state.reason or failed.what),
            ("why", failed.why),
            ("fix", failed.fix),
            ("see", failed.where),
        ]
    lines += [(f"restart {number}", _restart(restart)) for number, restart in enumerate(told.restarts, start=1)]
    if told.evaluations:
        lines.append(("held-out loss", _fall(told)))
    if state.newest_complete:
        program, run = recorded(run_dir, strict=False)
        newest = newest_complete(program.checkpoints(run, run_dir))
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
        lines.append(("go on", again))
    else:
        lines.append(("train longer", longer))
    return title, [(label, words) for label, words in lines if words]


def _restart(restart: history.Restart) -> str:
    waited = "" if restart.waited_s is None else f" {format_seconds(restart.waited_s)} later"
    origin = f"step {restart.followed.resume_step:,}" if restart.followed.resume_step else "the beginning"
    died = f"step {restart.failed.last_step:,}"
    told = restart.failed.what if died in restart.failed.what else f"{restart.failed.what} at {died}"
    return f"{told}; went on{waited} from {origin}"


def _fall(told: history.History) -> str:
    first, last = told.evaluations[0].loss, told.evaluations[-1].loss
    words = f"{first:.4f} -> {last:.4f}"
    if told.vocab_loss is not None:
        words += f", {1 - last / told.vocab_loss:.0%} below ln(vocabulary) = {told.vocab_loss:.4f}"
    return words


def _sample(text: str) -> str:
    lines = text.rstrip().split("\n")
    return "\n".join(lines[:_SAMPLE_LINES] + (["..."] if len(lines) > _SAMPLE_LINES else []))
