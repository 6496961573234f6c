"""`compare` and `resolve`: values of configs, whatever their text is."""

from __future__ import annotations

import pytest

from prime_train.config import detect
from prime_train.config.compare import compare, describe_key
from prime_train.config.differences import Difference
from prime_train.config.resolved import DEFAULT, resolve
from tests.unit.config.prime_rl.files import RL_2026_08

RUN = """\
[run]
name = "small"
max_steps = 100
[model]
layers = 4
[data]
ctx_tokens = 512
sources = [{kind = "files", path = "a.txt"}, {kind = "files", path = "b.txt"}]
"""


def _compare(before: str, after: str, name: str = "run.toml") -> tuple[Difference, ...]:
    generation = "2026-08" if name == "rl.toml" else None
    return compare(detect.read(before, name, generation), detect.read(after, name, generation)).differences


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("max_steps = 100", "max_steps = 1_00  # steps"),
        ('name = "small"\nmax_steps = 100', "max_steps = 100\nname = 'small'"),
        ("[model]", "[optim]\nclip_norm = 1\n[model]"),  # the default
    ],
)
def test_the_text_does_not_count(written: str, instead: str) -> None:
    assert written in RUN
    assert _compare(RUN, RUN.replace(written, instead)) == ()


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("max_steps = 40", 'max_steps = "40"'),
        ("rank = 16", "rank = 16\nalpha = 32"),  # the default
        ("[trainer.model.lora]\nrank = 16\n", "[trainer.model.lora]\n"),  # the same
        ("group_size = 8", "rollouts_per_example = 8"),
        ("[ckpt]", '[wandb]\nname = "None"\n[ckpt]'),
    ],
)
def test_what_prime_rl_reads_in_the_same_way_is_the_same(written: str, instead: str) -> None:
    assert written in RL_2026_08
    changed = RL_2026_08.replace(written, instead).replace("[wandb]", "[orchestrator.model.lora]")
    assert [one for one in _compare(RL_2026_08, changed, "rl.toml") if one.key != "orchestrator.model.lora"] == []


def test_a_key_of_prime_rl_that_no_rule_reads_is_compared() -> None:
    changed = RL_2026_08.replace("[orchestrator]", "[orchestrator]\npad_to_multiple_of = 8")
    assert _compare(RL_2026_08, changed, "rl.toml") == (Difference("orchestrator.pad_to_multiple_of", 1, 8),)


def test_a_key_that_no_schema_has_is_compared_as_it_is_written() -> None:
    changed = RUN.replace("layers = 4", "layers = 4\nlayer = 5")
    assert _compare(RUN, changed) == (Difference("model.layer", None, 5),)
    assert _compare(RUN, RUN.replace("layers = 4", 'layers = "many"'))[0].after == "many"


def test_of_two_formats_only_what_both_have_is_compared() -> None:
    found = compare(detect.read(RUN, "run.toml"), detect.read(RL_2026_08, "rl.toml", "2026-08"))
    assert Difference("format", "prime-train", "prime-rl") in found.differences
    assert Difference("run.max_steps", 100, 40) in found.differences
    assert not [one for one in found.differences if one.key.startswith(("model.", "data."))]
    assert "only the" in found.notes[0]


def test_files_of_one_other_program_are_compared_by_all_their_keys() -> None:
    text = "base_model: a/b\nmicro_batch_size: 2\nlearning_rate: 1e-5\nadapter: lora\ndatasets:\n  - path: x\n"
    changed = text.replace("1e-5", "0.00001").replace("micro_batch_size: 2", "micro_batch_size: 4")
    found = compare(detect.read(text, "a.yaml"), detect.read(changed, "b.yaml"))
    assert found.differences == (Difference("micro_batch_size", 2, 4),)
    assert "defaults are not known" in found.notes[0]


def test_a_key_is_described_by_its_documentation() -> None:
    assert "step" in describe_key("run.max_steps")
    assert describe_key('data.sources."a.txt".path').startswith("`files`")
    assert describe_key("no.such.key") == ""


def test_each_value_has_its_place_or_is_a_default() -> None:
    found = {one.key: one for one in resolve(detect.read(RUN, "run.toml"))}
    assert found["run.max_steps"].source == "run.toml:3"
    assert found["data.sources.1.path"].source == "run.toml:8"
    assert found["optim.clip_norm"].source == DEFAULT


def test_a_value_of_merged_files_has_the_file_that_overrules_the_others() -> None:
    parts = ((RUN, "base.toml"), ("[run]\nmax_steps = 7\n", "more.toml"))
    found = {one.key: one for one in resolve(detect.read_merged(parts))}
    assert found["run.max_steps"][1:] == (7, "more.toml:2")
    assert found["model.layers"].source == "base.toml:5"


def test_a_shared_key_of_prime_rl_is_named_as_the_source_of_each_side() -> None:
    found = {one.key: one for one in resolve(detect.read(RL_2026_08, "rl.toml", "2026-08"))}
    assert found["trainer.model.seq_len"][1:] == (2048, "rl.toml:2 (seq_len)")
    assert found["trainer.optim.max_norm"].source == DEFAULT
