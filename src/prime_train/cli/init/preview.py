"""Proposes a config: judged by every rule, and shown with memory, time, cost and findings before it is written."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.choose.audio import AudioWishes, draft_audio
from prime_train.choose.choose import choose
from prime_train.choose.draft import Setting
from prime_train.choose.wishes import BUNDLED, Wishes
from prime_train.cli.init.answers import read_flags
from prime_train.cli.init.clips import read_audio_flags
from prime_train.cli.init.flags import AUDIO, COMMAND, HERE, Flags
from prime_train.cli.init.trainers import find_prime_rl
from prime_train.cli.terminal.render import fit_terminal, painter
from prime_train.config import detect
from prime_train.config.parsed_config import Reading
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.findings import Finding, Severity
from prime_train.facts import requirements
from prime_train.facts.facts import Facts, to_json
from prime_train.facts.gather import ProbeOptions, gather
from prime_train.facts.host import parse_gpus
from prime_train.prices import store
from prime_train.programs import program_of
from prime_train.programs.command.derive import derive
from prime_train.programs.prime_rl.install import list_install_lines
from prime_train.rules import judge
from prime_train.rules.judge import Verdict
from prime_train.rules.rule import RULES
from prime_train.supervise.launch.program import ProgramConfig
from prime_train.views import findings as findings_view
from prime_train.views.estimate import text as estimate_view
from prime_train.views.estimate.document import document as estimate_document

_PRIME_RL = "prime-rl"  # the folder that it is cloned into
# A file that is not here yet, not a value of the config: the model, its tokenizer, a taskset, a package.
_ABSENT = frozenset({"MOD002", "TOK001", "TSK003", "ENV001"})


class Proposal(NamedTuple):
    """A config that may be written: its text, what is shown before, what to do after, and the document of --json."""

    text: str
    shown: str
    next_steps: str
    document: dict[str, Any]


class JudgedConfig(NamedTuple):
    """The verdict of `validate` on a config. `absent` are errors about what this machine has still to get."""

    reading: Reading
    verdict: Verdict
    facts: Facts
    absent: tuple[Finding, ...]


def propose(flags: Flags, path: str) -> Proposal:
    """The config that is chosen for the flags, or that their command stands for. Raises UserError."""
    if flags.command is not None:
        return _propose_command(flags.command, flags, path)
    if flags.task == AUDIO:
        return _propose_audio(flags, path)
    answered = read_flags(flags)
    chosen = choose(answered.wishes, store.load(store.today()), path)
    hardware, machines = answered.wishes.place.hardware, answered.wishes.place.machines
    gpus = None if flags.gpus in (None, HERE) else parse_gpus(f"{hardware.gpus // machines}x{hardware.id}")
    judged = _judge(chosen.reading, ProbeOptions(flags.offline, False, None, gpus), _is_absent)
    if not chosen.estimate.fits:
        fix = "a smaller model, --lora or more GPUs"
        raise UserError("the config does not fit", path, "nothing with an error is written", fix, ExitCode.FINDINGS)
    found = estimate_document(chosen.estimate)
    settings = list(map(_describe, chosen.draft.settings))
    more = {"trainer": chosen.trainer, "settings": settings, "estimate": found}
    shown = "\n".join((*answered.notes, "", _show(judged, estimate_view.text(found, painter(sys.stderr)))))
    return Proposal(
        chosen.text,
        shown,
        _list_next_steps(judged, answered.wishes, chosen.trainer, path),
        _to_document(judged, chosen.text, answered.notes, more),
    )


def _propose_audio(flags: Flags, path: str) -> Proposal:
    """The config of an encoder on the clips that --data names. Its memory and time are left to `estimate`."""
    wishes, notes = read_audio_flags(flags)
    draft = draft_audio(wishes)
    on = f"{wishes.gpus}x{wishes.gpu}" if wishes.gpus else "the CPU"
    text = draft.text(f"An encoder on the clips of {wishes.path}, for {on}, by `prime-train init`.")
    reading = detect.read(text, path)
    assert not reading.faults, reading.faults
    gpus = None if flags.gpus in (None, HERE) else parse_gpus(f"{wishes.gpus // wishes.machines}x{wishes.gpu}")
    judged = _judge(reading, ProbeOptions(flags.offline, False, None, gpus), _is_of_machine)
    steps = [shlex.join(("prime-train", *_name_scan(wishes)))]
    if wishes.gpus:  # it estimates GPUs alone
        steps.append(f"prime-train estimate {path}")
    more = {"trainer": BUNDLED, "settings": [_describe(one) for one in draft.settings], "estimate": None}
    document = _to_document(judged, text, notes, more)
    return Proposal(
        text, _show(judged, "\n".join(notes)), "\n  ".join(("next", *steps, *_list_commands(path))), document
    )


def _name_scan(wishes: AudioWishes) -> Iterator[str]:
    """The words of a scan that reads what the run reads."""
    yield from ("data", "audio", "scan", wishes.path, "--decode")
    if wishes.subset:
        yield from ("--subset", wishes.subset)
    if wishes.seen is None:
        return
    if wishes.seen.audio_field != "audio":
        yield from ("--audio-field", wishes.seen.audio_field)
    if wishes.seen.label_field is None:
        yield "--no-labels"
    elif wishes.seen.label_field != "label":
        yield from ("--label-field", wishes.seen.label_field)


def _describe(setting: Setting) -> dict[str, Any]:
    return {"key": setting.key, "value": setting.value, "why": setting.why or None}


def _propose_command(command: str, flags: Flags, path: str) -> Proposal:
    """The config of a trainer that is not ours, as `run -- COMMAND` makes it. Its sizes are not looked at."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(str(error), "--command", "it is split into words as a shell does", "close the quote") from None
    if not words:
        raise UserError("no word", "--command", "it is what starts the trainer", "--command 'torchrun train.py'")
    derived = derive(words, Path.cwd(), flags.name)
    notes = (*derived.notes, "sizes are those of the command: they are not known here, so none is chosen")
    reading = detect.read(derived.text, path)
    assert reading.run is not None, "the text is of this package"
    program_of(reading.run).refuse(ProgramConfig(derived.text, "--command", reading.run))  # as `run` does: a secret
    judged = _judge(reading, ProbeOptions(flags.offline), _is_of_machine)
    steps = (f"prime-train estimate --from-command {shlex.quote(command)}", *_list_commands(path))
    more: dict[str, Any] = {"trainer": COMMAND, "settings": [], "estimate": None}
    shown, document = _show(judged, "\n".join(notes)), _to_document(judged, derived.text, notes, more)
    return Proposal(derived.text, shown, "\n  ".join(("next", *steps)), document)


def _judge(reading: Reading, options: ProbeOptions, is_absent: Callable[[Finding], bool]) -> JudgedConfig:
    """Lint and validate a config. Raises UserError for an error about more than what is absent."""
    run = reading.run
    assert run is not None
    facts = gather(run, requirements.run_dir(run), judge.needs(), options, program_of(run).run_folder)
    verdict = judge.judge(reading, facts)
    errors = [found for found in verdict.findings if found.severity is Severity.ERROR]
    absent = tuple(found for found in errors if is_absent(found))
    wrong = next((found for found in errors if found not in absent), None)
    if wrong is not None:
        where = f"{wrong.path}  {wrong.code}"
        raise UserError(f"{wrong.key}: {wrong.what}", where, wrong.why, wrong.fix, ExitCode.FINDINGS)
    return JudgedConfig(reading, verdict, facts, absent)


def _is_of_machine(finding: Finding) -> bool:
    rule = RULES.get(finding.code)
    return finding.code in _ABSENT or (rule is not None and rule.family.startswith("machine."))


def _is_absent(finding: Finding) -> bool:
    return _is_of_machine(finding) and not finding.code.startswith("GPU")  # its GPUs were chosen


def _show(judged: JudgedConfig, beside: str) -> str:
    """What is known `beside` the text, then every finding and the tally of the rules."""
    present = tuple(found for found in judged.verdict.findings if found not in judged.absent)
    verdict = judged.verdict._replace(findings=present)
    blocks = (
        beside,
        findings_view.full(verdict._replace(skipped=()), painter(sys.stderr)),
        *(f"not here yet: {found.key}: {found.what}" for found in judged.absent),
        findings_view.tally(verdict),
    )
    return fit_terminal("\n\n".join(block for block in blocks if block), sys.stderr)


def _to_document(judged: JudgedConfig, text: str, notes: tuple[str, ...], more: dict[str, Any]) -> dict[str, Any]:
    """The document of `init --json`."""
    validated = findings_view.validate_json(judged.verdict, to_json(judged.facts))
    document = {"version": 1, "path": judged.reading.document.path, "text": text, "notes": list(notes)}
    return document | more | {"validate": validated}


def _list_commands(path: str) -> tuple[str, str]:
    return f"prime-train validate {shlex.quote(path)}", f"prime-train run {shlex.quote(path)}"


def _list_next_steps(judged: JudgedConfig, wishes: Wishes, trainer: str, path: str) -> str:
    """What to do before the run, and the command that starts it."""
    model, (validate, run) = shlex.quote(wishes.model), _list_commands(path)
    absent = [found for found in judged.absent if found.code not in ("MOD002", "TOK001")]
    title, steps = "next", [f"{found.key}: {found.fix}" for found in absent]
    if len(absent) < len(judged.absent):
        steps.insert(0, f"hf download {model} --local-dir {model}")
    if not judged.reading.has("run.name"):
        run += f" --run-name {shlex.quote(wishes.name)}"
    installed = "" if trainer == BUNDLED else find_prime_rl().generation
    if trainer not in (BUNDLED, installed):
        title = f"next: prime-rl {trainer} has to be installed ({f'{installed} is' if installed else 'none is'} here)"
        steps = [*list_install_lines(trainer, _PRIME_RL), *steps]
        run += f" --set prime_train.python={_PRIME_RL}/.venv/bin/python"
    if trainer != BUNDLED and wishes.place.machines > 1:  # which prime-rl only submits, and it knows no [prime_train]
        copy = shlex.quote(f"{Path(path).with_suffix('')}.prime-rl.toml")
        steps.append(f"sed '/^\\[prime_train\\]$/,/^$/d' {shlex.quote(path)} > {copy}")
        run = f"uv run {'' if trainer == installed else f'--project {_PRIME_RL} '}{wishes.task} @ {copy}"
    return "\n  ".join((title, *steps, validate, run))
