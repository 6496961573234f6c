from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.config.detect import read
from prime_train.config.parsed_config import REFUSED, Reading
from prime_train.config.prime_rl.alike import EarlierFiles
from prime_train.config.prime_rl.field_values import Source, known_of
from prime_train.config.prime_rl.schema import load
from prime_train.rules.judge import lint
from prime_train.toml.document import to_toml
from tests.config.prime_rl.files import FILES, RL_2026_05, RL_2026_08, SFT_2026_08

TEXTS = [(text, f"{root}.toml") for (_, root), text in FILES.items()]
# Values that some table, validator, field or rule treats in its own way.
STRINGS = ("", "None", "auto", "cosine", "linear", "adamw", "muon", "fake", "filesystem", "nccl", "agg", "hf", "step_3")
NUMBERS = (0, 1, -1, 2, 3, 8, 64, 4096, 10**6, 0.0, -0.0, 0.5, 1e-6, 1e9, float("inf"), float("nan"))


def text_of(values: dict[str, Any]) -> str:
    return "".join(f"{key} = {to_toml(value)}\n" for key, value in values.items())


def leaves(values: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        if isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], dict)):
            yield from leaves(value, (*at, key))
        else:
            yield (*at, key), value


def changed(values: dict[str, Any], changes: dict[tuple[Any, ...], Any]) -> dict[str, Any]:
    made = deepcopy(values)
    for key, value in changes.items():
        node: Any = made
        for part in key[:-1]:
            node = node[part]
        node[key[-1]] = value
    return made


@st.composite
def folders(draw: st.DrawFn) -> tuple[str, list[str]]:
    """(path, texts) of files with the keys of one file, of which a few values differ."""
    text, path = draw(st.sampled_from(TEXTS))
    values = tomli.loads(text)
    like: dict[type, Any] = {int: NUMBERS, float: NUMBERS, str: STRINGS, bool: (True, False), list: ([], [0], [0, 1])}
    all_leaves = list(leaves(values))
    texts = [text_of(values)]
    for _ in range(draw(st.integers(1, 5))):
        chosen = draw(st.lists(st.sampled_from(all_leaves), min_size=1, max_size=3))
        texts.append(
            text_of(
                changed(
                    values,
                    {
                        key: draw(st.sampled_from([value, *(v for v in like[type(value)] if type(v) is type(value))]))
                        for key, value in chosen
                    },
                )
            )
        )
    return path, texts


@given(folders())
@settings(max_examples=40, deadline=None)
def test_a_file_read_by_an_earlier_one_has_the_verdict_of_the_file_alone(folder: tuple[str, list[str]]) -> None:
    path, texts = folder
    earlier = EarlierFiles()
    for text in texts:
        alone, beside = lint(text, path), lint(text, path, None, earlier)
        assert repr(beside) == repr(alone)  # because nan equals nothing


def second(text: str, before: str, after: str, path: str = "rl.toml") -> Reading:
    """The reading of a text with a replacement, after the text itself was read. It is compared with that alone."""
    earlier = EarlierFiles()
    assert read(text, path, None, earlier).alike is None
    assert before in text
    reading = read(text.replace(before, after), path, None, earlier)
    assert reading._replace(alike=None) == read(text.replace(before, after), path)
    return reading


def test_parts_without_a_value_that_differs_are_the_same_objects() -> None:
    reading = second(RL_2026_08, "max_steps = 40", "max_steps = 41")
    assert reading.alike is not None
    assert reading.run is not None
    before = reading.alike.reading.run
    assert before is not None
    assert (before.run.max_steps, reading.run.run.max_steps) == (40, 41)
    assert reading.run.rollout is before.rollout
    assert reading.run.inference is before.inference


@pytest.mark.parametrize(("generation", "root"), FILES)
def test_every_field_is_renewed_by_the_keys_that_feed_it(generation: str, root: str) -> None:
    values = tomli.loads(FILES[generation, root])
    fed = known_of(Source(load(generation), root, values, {}, frozenset()))[0].values()
    number_alike = 0
    for key, value in leaves(values):
        if isinstance(value, int | float) and ".".join(map(str, key)) in fed:
            earlier = EarlierFiles()
            text = text_of(changed(values, {key: value * 2}))
            before = read(text_of(values), f"{root}.toml", generation, earlier)
            beside = read(text, f"{root}.toml", generation, earlier)
            assert beside.run == read(text, f"{root}.toml", generation).run != before.run
            number_alike += beside.alike is not None
    assert number_alike or root in ("sft", "inference", "env-server", "evals")  # these set few numbers


@pytest.mark.parametrize(
    ("text", "before", "after", "path"),
    [
        (RL_2026_08, "max_steps = 40", 'max_steps = "many"', "rl.toml"),  # another type
        (RL_2026_08, "max_steps = 40", "max_steps = -4", "rl.toml"),  # a fault
        (RL_2026_08, "max_steps = 40", "max_stops = 40", "rl.toml"),  # another key
        (RL_2026_05, 'type = "linear"', 'type = "cosine"', "rl.toml"),  # another member of a union
        (RL_2026_05, "args = { level = 2 }", "args = { level = 3 }", "rl.toml"),  # a key that prime-rl passes on
    ],
)
def test_a_value_with_another_effect_is_read_from_the_start(text: str, before: str, after: str, path: str) -> None:
    assert second(text, before, after, path).alike is None


def test_a_refused_combination_is_found_behind_an_accepted_one() -> None:
    sft = SFT_2026_08 + "\n[deployment]\nnum_train_gpus = 4\ngpus_per_node = 8\n"
    reading = second(sft, "num_train_gpus = 4", "num_train_gpus = 9", "sft.toml")
    assert [fault.code for fault in reading.faults] == [REFUSED]


def test_a_file_named_after_another_root_is_not_alike() -> None:
    earlier = EarlierFiles()
    read(RL_2026_08, "rl.toml", None, earlier)
    for path in ("inference.toml", "orch/a.toml"):
        beside = read(RL_2026_08, path, None, earlier)
        assert beside.alike is None
        assert beside._replace(alike=None) == read(RL_2026_08, path)


def test_the_generation_of_the_command_line_is_not_that_of_an_earlier_file() -> None:
    earlier = EarlierFiles()
    read(RL_2026_08, "rl.toml", "2026-08", earlier)
    beside = read(RL_2026_08, "rl.toml", "2026-05", earlier)
    assert beside.alike is None
    assert beside.generation == "2026-05"


def test_files_that_cannot_be_read_by_an_earlier_one_leave_it_in_place() -> None:
    earlier = EarlierFiles()
    read(RL_2026_05, "rl.toml", None, earlier)
    assert read(RL_2026_05.replace("level = 2", "level = 3"), "rl.toml", None, earlier).alike is None
    assert read(RL_2026_05.replace("max_steps = 40", "max_steps = 41"), "rl.toml", None, earlier).alike is not None


def test_a_thousand_kinds_of_files_are_not_all_kept() -> None:
    earlier = EarlierFiles()
    for number in range(60):
        read(f"{RL_2026_08}\n[orchestrator.env_vars]\nKEY_{number} = 'a'\n", "rl.toml", None, earlier)
        read(f"[trainer.env_vars]\nKEY_{number} = 'a'\n{RL_2026_08}", "rl.toml", None, earlier)
    assert len(earlier) <= 100
