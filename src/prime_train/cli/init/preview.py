"""Judges a chosen config by every rule and shows it before it is written: text, memory, time, cost, findings."""

from __future__ import annotations

import shlex
import sys
from typing import Any, NamedTuple

from prime_train.choose.choose import ChosenConfig
from prime_train.choose.wishes import BUNDLED, Wishes
from prime_train.cli.init.answers import find_prime_rl
from prime_train.cli.terminal.render import fit_terminal, painter
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.findings import Finding, Severity
from prime_train.facts import requirements
from prime_train.facts.facts import Facts, to_json
from prime_train.facts.gather import ProbeOptions, gather
from prime_train.facts.host import parse_gpus
from prime_train.programs import program_of
from prime_train.programs.prime_rl.install import list_install_lines
from prime_train.rules import judge
from prime_train.rules.judge import Verdict
from prime_train.rules.rule import RULES
from prime_train.views import findings as findings_view
from prime_train.views.estimate import text as estimate_view
from prime_train.views.estimate.document import document as estimate_document

_PRIME_RL = "prime-rl"  # the folder that it is cloned into
# A file that is not here yet, not a value of the config: the model, its tokenizer, a taskset, a package.
_ABSENT = frozenset({"MOD002", "TOK001", "TSK003", "ENV001"})


class JudgedConfig(NamedTuple):
    """The verdict of `validate` on a chosen config. `absent` are errors about what this machine has still to get."""

    chosen: ChosenConfig
    verdict: Verdict
    facts: Facts
    absent: tuple[Finding, ...]


def judge_chosen(chosen: ChosenConfig, wishes: Wishes, *, is_here: bool, offline: bool) -> JudgedConfig:
    """Lint and validate the config for its GPUs. Raises UserError if it has an error, or does not fit."""
    run = chosen.reading.run
    assert run is not None
    hardware, machines = wishes.place.hardware, wishes.place.machines
    gpus = None if is_here else parse_gpus(f"{hardware.gpus // machines}x{hardware.id}")
    options = ProbeOptions(offline, False, None, gpus)
    facts = gather(run, requirements.run_dir(run), judge.needs(), options, program_of(run).run_folder)
    verdict = judge.judge(chosen.reading, facts)
    errors = [found for found in verdict.findings if found.severity is Severity.ERROR]
    absent = tuple(found for found in errors if _is_absent(found))
    wrong = [found for found in errors if found not in absent]
    if wrong or not chosen.estimate.fits:
        raise _refuse(wrong, chosen)
    return JudgedConfig(chosen, verdict, facts, absent)


def _is_absent(finding: Finding) -> bool:
    rule = RULES.get(finding.code)
    is_machine = rule is not None and rule.family.startswith("machine.")
    return finding.code in _ABSENT or (is_machine and not finding.code.startswith("GPU"))  # its GPUs were chosen


def _refuse(wrong: list[Finding], chosen: ChosenConfig) -> UserError:
    first = next(iter(wrong), None)
    return UserError(
        what="the config does not fit" if first is None else f"{first.key}: {first.what}",
        where=chosen.reading.document.path if first is None else f"{first.path}  {first.code}",
        why="nothing with an error is written" if first is None else first.why,
        fix="a smaller model, --lora or more GPUs" if first is None else first.fix,
        exit_code=ExitCode.FINDINGS,
    )


def show(judged: JudgedConfig) -> str:
    """Memory by role, time and cost, then every finding and the tally of the rules."""
    paint = painter(sys.stderr)
    present = tuple(found for found in judged.verdict.findings if found not in judged.absent)
    verdict = judged.verdict._replace(findings=present)
    blocks = (
        estimate_view.text(estimate_document(judged.chosen.estimate), paint),
        findings_view.full(verdict._replace(skipped=()), paint),
        *(f"not here yet: {found.key}: {found.what}" for found in judged.absent),
        findings_view.tally(verdict),
    )
    return fit_terminal("\n\n".join(block for block in blocks if block), sys.stderr)


def to_document(judged: JudgedConfig, path: str, notes: tuple[str, ...]) -> dict[str, Any]:
    """The document of `init --json`."""
    chosen = judged.chosen
    return {
        "version": 1,
        "path": path,
        "trainer": chosen.trainer,
        "text": chosen.text,
        "settings": [
            {"key": setting.key, "value": setting.value, "why": setting.why or None}
            for setting in chosen.draft.settings
        ],
        "notes": list(notes),
        "estimate": estimate_document(chosen.estimate),
        "validate": findings_view.validate_json(judged.verdict, to_json(judged.facts)),
    }


def list_next_steps(judged: JudgedConfig, wishes: Wishes, path: str) -> str:
    """What to do before the run, and the command that starts it."""
    config, model, trainer = shlex.quote(path), shlex.quote(wishes.model), judged.chosen.trainer
    absent = [found for found in judged.absent if found.code not in ("MOD002", "TOK001")]
    title, run, steps = "next", f"prime-train run {config}", [f"{found.key}: {found.fix}" for found in absent]
    if len(absent) < len(judged.absent):
        steps.insert(0, f"hf download {model} --local-dir {model}")
    installed = "" if trainer == BUNDLED else find_prime_rl().generation
    if trainer not in (BUNDLED, installed):
        title = f"next: prime-rl {trainer} has to be installed ({f'{installed} is' if installed else 'none is'} here)"
        steps = [*list_install_lines(trainer, _PRIME_RL), *steps]
        run += f" --set prime_train.python={_PRIME_RL}/.venv/bin/python"
    return "\n".join((title, *(f"  {step}" for step in (*steps, f"prime-train validate {config}", run))))
