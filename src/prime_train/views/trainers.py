"""Makes the documents of trainers' profiles and of a checked log, and their text. Reads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from prime_train.programs.command.progress.check_log import CheckedLog, find_end
from prime_train.programs.command.progress.series import LossSeries, StepSeries
from prime_train.registry.trainers import ResumeWay, StopWay, TrainerProfile, trainer_profile
from prime_train.views.text import pick, rounded, sanitize

HEADER = ("NAME", "TRAINER", "LINES", "FILES", "RESUMES BY", "STOPS BY", "READ FROM")
_DIGITS = 6
_SHOWN = 5


def trainers_json(profiles: Iterable[TrainerProfile]) -> dict[str, Any]:
    """The document of `trainers list --json` and `trainers show --json`."""
    return {"version": 1, "trainers": [_profile_json(profile) for profile in profiles]}


def _profile_json(profile: TrainerProfile) -> dict[str, Any]:
    return {
        **pick(profile, "name", "title", "source", "like", "launcher"),
        "recognise": profile.recognise._asdict(),
        "lines": [line._asdict() | {"pattern": line.pattern.pattern} for line in profile.lines],
        "files": [file._asdict() for file in profile.files],
        "phases": [phase._asdict() | {"pattern": phase.pattern.pattern} for phase in profile.phases],
        "checkpoints": profile.checkpoints._asdict() | {"layouts": profile.layout_names},
        "resume": profile.resume._asdict(),
        "stop": profile.stop._asdict(),
        "exits": profile.exits._asdict(),
        "restarts": profile.restarts,
        "retention": profile.retention,
    }


def as_rows(profiles: Iterable[TrainerProfile]) -> list[tuple[str, ...]]:
    """One row per profile under HEADER."""
    return [
        (
            profile.name,
            profile.title,
            str(len(profile.lines)),
            str(len(profile.files) or "-"),
            profile.resume.how,
            profile.stop.how,
            profile.source,
        )
        for profile in profiles
    ]


def as_lines(profile: TrainerProfile) -> list[tuple[str, str]]:
    """Label and text of each line of `trainers show NAME`, without what is not known."""
    exits = profile.exits
    codes = [f"{code}: {meaning}" for code, meaning in exits.codes.items()]
    place = profile.checkpoints
    where = [
        *place.flags,
        *place.keys,
        place.variable and f"${place.variable}",
        place.default and f"else {place.default}",
    ]
    lines = [
        ("trainer", f"{profile.title} ({profile.source})"),
        ("like", profile.like),
        ("recognised by", "\n".join(_recognised_by(profile))),
        ("lines", "\n".join(f"{line.kind:<10}  {line.examples[0].strip()}" for line in profile.lines)),
        ("files", "\n".join(f"{file.path} ({file.kind})" for file in profile.files)),
        ("slow phases", "\n".join(f"{phase.name}: up to {phase.limit_s:g} s" for phase in profile.phases)),
        ("checkpoints", ", ".join(part for part in where if part)),
        ("layouts", ", ".join(profile.layout_names)),
        ("resume", _resume_text(profile.resume)),
        ("stop", _stop_text(profile.stop)),
        ("finished", _finished_text(profile)),
        ("exit codes", "\n".join(codes)),
        ("own restarts", ", ".join(profile.restarts)),
        ("own retention", ", ".join(profile.retention)),
    ]
    return [(label, text) for label, text in lines if text]


def _recognised_by(profile: TrainerProfile) -> list[str]:
    known = profile.recognise
    imports = f"import {', '.join(known.imports)}" if known.imports else ""
    names = f" with {' or '.join(known.names)}" if known.names else ""
    formats = f"a config file of {', '.join(known.formats)}" if known.formats else ""
    return [text for text in (*known.programs, *known.words, imports + names, formats) if text]


def _resume_text(resume: ResumeWay) -> str:
    ways = {
        "itself": "it finds a checkpoint itself",
        "argument": f"by the argument {resume.template}",
        "variable": f"by the variable {resume.template}",
        "none": "the command cannot ask for it",
    }
    aside = {"rename": "a broken newest one is renamed", "tracker": "the tracker is rewritten", "none": ""}[
        resume.aside
    ]
    return "\n".join(text for text in (ways[resume.how], aside, resume.note) if text)


def _stop_text(stop: StopWay) -> str:
    ways = {
        "signal": f"{stop.signal} to the {stop.to}",
        "file": f"the file {stop.file}",
        "none": "no request makes it save: it is ended after the next save",
    }
    return "\n".join(text for text in (ways[stop.how], "it saves first" if stop.saves else "", stop.note) if text)


def _finished_text(profile: TrainerProfile) -> str:
    last_line = " or the last line" if profile.exits.end_line else ""
    return (
        "exit code 0" if profile.exits.zero_is_finished else f"the last step{last_line}; exit code 0 does not show it"
    )


# --- a checked log ------------------------------------------------------------------------------------


def log_json(checked: CheckedLog) -> dict[str, Any]:
    """The document of `trainers check --json`. A loss that is no number is null."""
    summary = checked.summary
    lines = [pick(mark, "kind", "step", "text") for mark in summary.lines]
    return {
        "version": 1,
        **pick(checked, "path", "kind", "trainer", "lines", "taken"),
        "steps": None if summary.steps is None else asdict(summary.steps),
        "losses": _losses_json(summary.losses),
        "evaluations": _losses_json(summary.evaluations),
        "evaluation_steps": summary.evaluation_steps,
        "saves": pick(summary, "saves_begun", "saves_done", "saved_steps"),
        "shown": lines,
        "end": find_end(checked.trainer, summary),
        "unknown": checked.unknown,
    }


def _losses_json(losses: LossSeries | None) -> dict[str, Any] | None:
    if losses is None:
        return None
    finite = {"first": rounded(losses.first, _DIGITS), "last": rounded(losses.last, _DIGITS)}
    return asdict(losses) | finite


def log_lines(document: Mapping[str, Any], steps: StepSeries | None) -> list[tuple[str, str]]:
    """Label and text of each line of `trainers check LOG`, from the document."""
    others = [f"{name} ({count} lines)" for name, count in document["taken"].items() if name != document["trainer"]]
    saves = document["saves"]
    lines = [
        ("trainer", document["trainer"] or f"a file of metrics ({document['kind']})"),
        ("also seen", ", ".join(others)),
        ("steps", _steps_text(steps)),
        ("counted", _counting_text(document["trainer"]) if steps is not None else ""),
        ("losses", _losses_text(document["losses"])),
        ("evaluations", f"{_losses_text(document['evaluations'])}{_at(document['evaluation_steps'])}".lstrip()),
        ("saves", _saves_text(saves)),
        ("shown", "\n".join(f"{mark['kind']}: {sanitize(mark['text'])}" for mark in document["shown"][-_SHOWN:])),
        ("end", document["end"] or ""),
        ("not known", "\n".join(document["unknown"])),
    ]
    return [(label, text) for label, text in lines if text]


def _steps_text(steps: StepSeries | None) -> str:
    if steps is None:
        return ""
    of = "" if steps.total is None else f" of {steps.total}"
    every = f", every {steps.stride}" if steps.stride else ""
    gaps = f"\n{steps.gap_count} gaps: {_pairs(steps.gaps)}" if steps.gap_count else ""
    resets = f"\nit went back {steps.reset_count} times: {_pairs(steps.resets)}" if steps.reset_count else ""
    return f"{steps.first} to {steps.last}{of} ({steps.unit}), {steps.count} seen{every}{gaps}{resets}"


def _counting_text(trainer: str) -> str:
    """Why a step is not the number in its line. Steps that are done are counted, and some trainers count from 0."""
    offsets = {line.offset for line in trainer_profile(trainer).lines if line.kind == "step"} if trainer else set()
    return "steps that are done; the numbers in the log begin with 0" if offsets == {1} else ""


def _pairs(pairs: Iterable[tuple[int, int]]) -> str:
    shown = list(pairs)
    return ", ".join(f"{before} -> {after}" for before, after in shown[:_SHOWN]) + (
        " ..." if len(shown) > _SHOWN else ""
    )


def _losses_text(losses: Mapping[str, Any] | None) -> str:
    if losses is None:
        return ""
    ends = " to ".join("nan" if losses[end] is None else f"{losses[end]:g}" for end in ("first", "last"))
    bad = f", {losses['not_finite']} are no number" if losses["not_finite"] else ""
    return f"{losses['count']}, {ends}{bad}"


def _at(steps: Iterable[int]) -> str:
    shown = list(steps)[-_SHOWN:]
    return f" (at {', '.join(map(str, shown))})" if shown else ""


def _saves_text(saves: Mapping[str, Any]) -> str:
    if not saves["saves_begun"] + saves["saves_done"]:
        return ""
    return f"{saves['saves_begun']} begun, {saves['saves_done']} reported as done{_at(saves['saved_steps'])}"
