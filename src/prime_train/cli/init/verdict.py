"""The verdict of `verify-model` on a model, in a few lines. Downloads no weights."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from prime_train.estimate import hardware
from prime_train.models.read.architectures import read_installed
from prime_train.models.read.evidence import gather_evidence
from prime_train.models.read.model_files import RefusedRead
from prime_train.models.verdict.judge import judge, judge_unreached
from prime_train.models.verdict.support import Stack
from prime_train.models.verdict.verdicts import LABELS


def describe_model(model: str, *, offline: bool) -> str:
    """One line for each use of the model; "not known" where its files cannot be read."""
    target = hardware.hardware_from_name("h100-80gb")  # memory is judged later, for the GPUs of the run
    with tempfile.TemporaryDirectory(prefix="prime-train-") as scratch:
        found = gather_evidence(model, Path(scratch), sys.executable, offline=offline)
    if isinstance(found, RefusedRead):
        verdict = judge_unreached(model, found, Stack(read_installed(sys.executable)), target)
    else:
        verdict = judge(found, Stack(found.installed), target)
    if verdict is None:
        return f"{model}: not known: its files cannot be read, and the registry does not have it"
    return "\n".join(f"{model}  {LABELS[use.id]}: {use.outcome}, {use.what}" for use in verdict.uses)
