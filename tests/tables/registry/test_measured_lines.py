"""The lines and rows that were collected from real trainers: the own profile takes each, and no unrelated one does."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from prime_train.programs.command.progress.files import open_reader
from prime_train.registry.trainers import TrainerProfile, trainer_profiles
from tests.tables.registry.test_trainers import takers

# Beside the checkout, or where the variable says; a public clone has none.
TABLE = Path(
    os.environ.get("TRAINER_LINES", Path(__file__).parents[4] / "shared" / "facts" / "trainers" / "log_lines.csv")
)
ROWS = list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines())) if TABLE.is_file() else []
# The table has a name for each kind of training; a profile is for all that a trainer does.
NAMES = {
    "hf-trainer": "hf",
    "llamafactory": "llama-factory",
    "megatron-lm": "megatron",
    "ms-swift-megatron": "ms-swift",
}
KINDS = ("-sft", "-ppo", "-rl")
HEADERS = {"lightning": "epoch,step,train_loss\n"}  # the table has the row of a CSV file without its header
PROFILES = trainer_profiles()

pytestmark = pytest.mark.skipif(not ROWS, reason="the table of collected lines is not here")


def own_name(trainer: str) -> str:
    """The profile of a trainer of the table."""
    name = NAMES.get(trainer, trainer)
    kind = next((kind for kind in KINDS if name not in PROFILES and name.endswith(kind)), "")
    return name.removesuffix(kind)


def ancestors(name: str) -> set[str]:
    """The profile and those that it is like."""
    found = {name}
    while name := PROFILES[name].like:
        found.add(name)
    return found


def reads(profile: TrainerProfile, text: str) -> bool:
    """Whether a file of the profile takes the text as a row of metrics or as a state."""
    readers = [open_reader(file, profile.lines) for file in profile.files if file.kind != "log"]
    return any(reader.feed(text.encode() + b"\n") + reader.finish() for reader in readers)


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['trainer']}-{number}" for number, row in enumerate(ROWS)])
def test_a_line_is_taken_by_its_own_profile_and_no_unrelated_one(row: dict[str, str]) -> None:
    own, text = own_name(row["trainer"]), row["example"].replace("\\x1b", "\x1b")  # colours are spelled in the table
    found = takers(text)
    if row["kind"].endswith("_file") and not found:  # one of the files of metrics is written as a log is
        found = [name for name, profile in PROFILES.items() if reads(profile, HEADERS.get(row["trainer"], "") + text)]
        assert own in found
    else:
        assert found[0] == own, "the most special profile is tried first"
    assert all(name in ancestors(own) or own in ancestors(name) for name in found)
