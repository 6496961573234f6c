"""Describes what is known of a trainer, and what is not. Pure."""

from __future__ import annotations

from prime_train.programs.command.trainer import KnownTrainer
from prime_train.spec import ENDLESS_STEPS, RunSpec

_UNKNOWN = "not known"


def describe_trainer(trainer: KnownTrainer, run: RunSpec) -> tuple[tuple[str, str], ...]:
    """Label and text of each line: the trainer, its progress, checkpoints, resume, stop and end."""
    return (
        ("trainer", trainer.title),
        ("progress", _describe_progress(trainer, run)),
        ("checkpoints", _describe_checkpoints(trainer)),
        ("resume", _describe_resume(trainer)),
        ("stop", _describe_stop(trainer, run)),
        ("finished", _describe_end(trainer, run)),
    )


def _describe_progress(trainer: KnownTrainer, run: RunSpec) -> str:
    if not trainer.shows_steps:
        return f"{_UNKNOWN}: set command.progress, or call prime_train.live; a hang is 45 minutes without any work"
    sources = ["command.progress.log"] if trainer.command.progress.log else []
    sources += [str(trainer.progress_file)] if trainer.progress_file is not None else []
    if not trainer.command.progress.log and any(line.kind == "step" for line in trainer.lines):
        sources.append("its output")
    files = [file.path for file in trainer.files if trainer.checkpoints is not None or "{dir}" not in file.path]
    sources += [path.replace("{dir}", str(trainer.checkpoints)) for path in files]
    last = "" if run.run.max_steps >= ENDLESS_STEPS else f"; the last step is {run.run.max_steps:,}"
    return f"from {', '.join(sources)}{last}"


def _describe_checkpoints(trainer: KnownTrainer) -> str:
    if trainer.checkpoints is None:
        return f"{_UNKNOWN}: set command.checkpoints, or call live.checkpoint; nothing else is deleted or resumed from"
    if trainer.layout is None:
        return f"in {trainer.checkpoints}, in an unknown layout: none counts as complete, and nothing is deleted"
    return f"in {trainer.checkpoints}, complete by their content"


def describe_search(trainer: KnownTrainer) -> str:
    """Why `ckpt` shows no checkpoint: what it looked for and where, or what is not known."""
    folder, forms = trainer.checkpoints, trainer.layouts
    if folder is None:
        return (
            f"where {trainer.title} saves is {_UNKNOWN}: no word of the command names a folder, and the script has not "
            "called live.checkpoint; set command.checkpoints.dir and, where no profile fits, command.checkpoints.layout"
        )
    if not forms:
        why = trainer.profile.checkpoints.note if trainer.profile is not None else ""
        return (
            f"the layout of what {trainer.title} saves in {folder} is {_UNKNOWN}{f' ({why})' if why else ''}, so "
            "nothing there counts as a checkpoint; command.checkpoints.layout names one"
        )
    kinds = " or ".join(dict.fromkeys(f"{form.kind} named {form.step}" for form in forms))
    below = sorted({name for form in forms for name in (*form.below, *form.parts)} - {"."})
    places = ", ".join(str(folder / name) for name in (".", *below))
    missing = "" if folder.is_dir() else ", which does not exist"
    note = trainer.profile.checkpoints.note if trainer.profile is not None else ""
    return f"no {kinds} in {places}{missing}{f' ({note})' if note else ''}; command.checkpoints sets another place"


def _describe_resume(trainer: KnownTrainer) -> str:
    way = trainer.resume
    aside = {
        "rename": "; broken newer checkpoints are renamed before",
        "tracker": "; its record of the latest checkpoint is corrected before",
    }.get(way.aside, "")
    if trainer.resumes_by_live:
        return f"by a callback that loads the newest whole checkpoint{aside}"
    match way.how:
        case "argument":
            return f"by {way.template}{aside}"
        case "variable":
            return f"by the variable {way.template}{aside}"
        case "itself":
            return f"it finds its newest checkpoint itself{aside}"
    why = f" ({way.note})" if way.note else ""
    return f"{_UNKNOWN}{why}: each attempt is the same command; set command.resume, or call live.resume_path"


def _describe_stop(trainer: KnownTrainer, run: RunSpec) -> str:
    way, grace_s = trainer.stop, run.prime_train.stop_grace_s
    to = "the training processes" if way.to == "workers" else "the launcher"
    match way.how:
        case "file":
            text = f"the file {way.file}"
        case "none" if trainer.layout is not None:
            text = f"it saves nothing on request: {way.signal} to {to} after its next checkpoint"
        case _:
            text = f"{way.signal} to {to}"
    return f"{text}; {grace_s:g} s to end"


def _describe_end(trainer: KnownTrainer, run: RunSpec) -> str:
    codes = ", ".join(map(str, trainer.command.exits.finished))
    also = f", or exit code {codes}" if codes else ""
    if run.run.max_steps < ENDLESS_STEPS:
        return f"step {run.run.max_steps:,}{also}"
    if trainer.profile is None:
        return f"exit 0{also}; whether it finished is {_UNKNOWN} then, because its last step is"
    line = ", or its last line" if trainer.exits.end_line else ""
    return f"the last step that it reports itself{line}{also}; exit 0 alone is no end"
