"""A run that begins with another run's weights gets that run's directory, step and tokenizer, once and for all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prime_train import spec
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.programs.base import resolve_init_from, take_tokenizer
from prime_train.spec import RunSpec, to_json
from tests.system.checkpoints.test_archive import write


def run_of(name: str, **model: object) -> RunSpec:
    return RunSpec(
        run=spec.Run(name=name, max_steps=5),
        model=spec.Model(**model),  # type: ignore[arg-type]
        data=spec.Data(sources=(spec.Source(kind="python-stdlib"),)),
    )


@pytest.fixture
def first(tmp_path: Path) -> RunDir:
    """A run with checkpoints of steps 5 and 8, a save of step 9 that did not finish, and a trained tokenizer."""
    run_dir = RunDir(tmp_path / "runs" / "first")
    for step in (5, 8):
        write(run_dir.checkpoints, {"__0_0.distcp": b"x", ".metadata": b""}, step)
    (run_dir.checkpoint(9)).mkdir()
    run_dir.tokenizer.mkdir()
    (run_dir.tokenizer / "tokenizer.json").write_text("trained")
    run_dir.resolved.write_text(to_json(run_of("first")))
    return run_dir


@pytest.fixture
def second(tmp_path: Path) -> RunDir:
    run_dir = RunDir(tmp_path / "runs" / "second")
    run_dir.path.mkdir(parents=True)
    return run_dir


@pytest.mark.parametrize("by", ["name", "directory"])
def test_the_newest_complete_checkpoint_and_the_tokenizer_are_chosen(first: RunDir, second: RunDir, by: str) -> None:
    named = "first" if by == "name" else str(first.path)
    run = resolve_init_from(run_of("second", init_from=named), second, None)
    assert (run.model.init_from, run.model.init_step) == (str(first.path), 8)
    assert run.tokenizer.path == str(second.tokenizer)
    take_tokenizer(run, second)
    assert (second.tokenizer / "tokenizer.json").read_text() == "trained"
    again = resolve_init_from(run_of("second", init_from=named, init_step=5), second, None)
    assert again.model.init_step == 5


def test_a_run_that_has_begun_keeps_its_answers(first: RunDir, second: RunDir) -> None:
    """The other run goes on, or is deleted."""
    config = run_of("second", init_from="first")
    began = resolve_init_from(config, second, None)
    write(first.checkpoints, {"__0_0.distcp": b"x", ".metadata": b""}, 12)
    assert resolve_init_from(config, second, began) == began
    first.path.rename(first.path.with_name("elsewhere"))
    assert resolve_init_from(config, second, began) == began


def test_a_tokenizer_that_the_config_or_the_other_run_names_is_taken(first: RunDir, second: RunDir) -> None:
    own = replace(run_of("second", init_from="first"), tokenizer=spec.Tokenizer(path="/own"))
    assert resolve_init_from(own, second, None).tokenizer.path == "/own"
    first.resolved.write_text(to_json(replace(run_of("first"), tokenizer=spec.Tokenizer(path="/theirs"))))
    run = resolve_init_from(run_of("second", init_from="first"), second, None)
    assert run.tokenizer.path == "/theirs"
    take_tokenizer(run, second)
    assert not second.tokenizer.exists()


@pytest.mark.parametrize(
    ("model", "what"),
    [
        ({"init_from": "frist"}, "no run 'frist'"),
        ({"init_from": "second"}, "own weights"),
        ({"init_from": "first", "init_step": 7}, "no complete checkpoint of step 7"),
        ({"init_from": "first", "init_step": 9}, "no complete checkpoint of step 9"),
    ],
)
def test_what_cannot_be_begun_with_is_refused(
    first: RunDir, second: RunDir, model: dict[str, object], what: str
) -> None:
    assert first.path.is_dir()
    second.resolved.write_text(to_json(run_of("second")))
    with pytest.raises(UserError, match=what) as refused:
        resolve_init_from(run_of("second", **model), second, None)
    assert refused.value.where.startswith("model.init_")
    assert refused.value.fix


def test_a_config_without_the_key_stays_as_it_is(second: RunDir) -> None:
    run = run_of("second")
    assert resolve_init_from(run, second, None) is run
