"""Each line and each file of a trainer's profile is taken by that profile, and by no other that is tried before it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prime_train.core.installation import shipped
from prime_train.programs.command.progress.files import open_reader, recognise_file
from prime_train.programs.command.progress.lines import LineSplitter
from prime_train.programs.command.progress.log_progress import find_line
from prime_train.registry.trainers import TrainerLine, TrainerProfile, trainer_profile, trainer_profiles

PROFILES = trainer_profiles()


def texts(example: str) -> list[str]:
    splitter = LineSplitter()
    return splitter.feed(example.encode()) + splitter.finish()


def takers(example: str) -> list[str]:
    """The profiles whose own lines take a part of the example, in the order in which they are tried."""
    parts = texts(example)
    return [name for name, profile in PROFILES.items() if any(find_line(part, profile.own_lines) for part in parts)]


LINES = [
    pytest.param(profile, line, example, id=f"{name}-{line.kind}-{number}")
    for name, profile in PROFILES.items()
    for line in profile.own_lines
    for number, example in enumerate(line.examples)
]


@pytest.mark.parametrize(("profile", "line", "example"), LINES)
def test_a_line_is_taken_by_its_own_profile_and_no_other(
    profile: TrainerProfile, line: TrainerLine, example: str
) -> None:
    found = [find_line(part, profile.lines) for part in texts(example)]
    assert any(taken is not None and taken[0] is line for taken in found)
    first, *others = takers(example)
    assert first == profile.name
    parents = {profile.like, *(PROFILES[profile.like].like if profile.like else "",)}
    assert set(others) <= parents, "only the profile that it is like may take the line as well"


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_every_line_of_a_profile_has_an_example_and_a_source(profile: TrainerProfile) -> None:
    assert profile.own_lines or profile.layouts
    for line in profile.own_lines:
        assert line.examples
        assert line.source
    for phase in profile.phases:
        assert all(phase.pattern.search(example) for example in phase.examples)
        assert phase.examples
        assert phase.limit_s >= 600


FILES = [
    pytest.param(profile, number, id=f"{name}-{number}")
    for name, profile in PROFILES.items()
    for number, file in enumerate(profile.files)
    if file.examples
]


@pytest.mark.parametrize(("profile", "number"), FILES)
def test_a_file_is_read_by_its_own_profile_and_no_other(profile: TrainerProfile, number: int) -> None:
    own = profile.files[number]
    for example in own.examples:
        takes = []
        for other in PROFILES.values():
            for file in other.files:
                reader = open_reader(file, other.lines)
                marks = reader.feed(example.encode()) + reader.finish()
                if file.kind != "log" and any(mark.step is not None for mark in marks):
                    takes.append((file.kind, file.step, file.needs))
        assert set(takes) == {(own.kind, own.step, own.needs)}


@pytest.mark.parametrize(("profile", "number"), FILES)
def test_a_file_of_a_profile_is_recognised_by_its_content(profile: TrainerProfile, number: int) -> None:
    own = profile.files[number]
    found = recognise_file("metrics", own.examples[0].encode())
    assert found is not None
    assert (found.kind, found.step) == (own.kind, own.step)


def test_profiles_are_tried_before_those_that_they_are_like() -> None:
    names = list(PROFILES)
    for name, profile in PROFILES.items():
        for later in (*profile.before, *([profile.like] if profile.like else ())):
            assert names.index(name) < names.index(later)
    assert all(names.index(name) < names.index("hf") for name in ("trl", "axolotl", "ms-swift", "llama-factory"))


def test_an_engine_is_tried_after_every_trainer() -> None:
    """A script that imports accelerate and transformers is a run of transformers."""
    engines = [profile.engine for profile in PROFILES.values()]
    assert engines == sorted(engines)
    assert any(engines)


def test_a_word_that_may_be_a_value_is_no_sign_of_a_trainer() -> None:
    plain = ["train", "sft", "trainer", "swift", "tune", "dpo", "grpo", "main", "run"]
    scripts = ["train.py", "sft.py", "finetune_lora.py", "train.sh", "pretrain.py"]
    for profile in PROFILES.values():
        for pattern in profile.recognise.words:
            assert not any(re.fullmatch(pattern, word) for word in plain + scripts), (profile.name, pattern)


def test_a_profile_inherits_what_it_leaves_out() -> None:
    hf, axolotl = trainer_profile("hf"), trainer_profile("axolotl")
    assert axolotl.lines[-len(hf.lines) :] == hf.lines
    assert axolotl.layout_names == hf.layout_names
    assert axolotl.retention == hf.retention
    assert axolotl.stop != hf.stop


def test_every_pattern_bounds_what_it_repeats() -> None:
    """A repeat in a repeat takes time that grows with the power of the length of a line."""
    for path in sorted(Path(shipped("trainers")).glob("*.toml")):
        assert not re.search(r"[*+]\)[*+]", path.read_text(encoding="utf-8")), path
