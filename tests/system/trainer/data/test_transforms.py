"""Transformations that change in the middle of a run: the same batches for any number of workers and after a resume."""

from __future__ import annotations

import random
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prime_train.core.errors import UserError
from prime_train.spec import RunSpec
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.data.corpus import open_corpora
from prime_train.trainer.data.stream import TrainStream, held_out_batches, prepare
from prime_train.trainer.data.text_tokenizer import load_tokenizer
from tests.system.trainer.data.test_stream import joined, same, take, through_json
from tests.unit.trainer.data.small_runs import files, small_run, write_texts

_MODULE = """
def upper(text):
    return text.upper()

def twice(text):
    return text + " " + text

def drop(text):
    return "" if int(text.split()[0]) % 2 else text

def fail(text):
    number = int(text.split()[0])
    if number % 10_000 > 10:
        raise ValueError(number)
    return text

number = 3
not_text = len
"""
_STEPS = 24


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A module of the working directory, whose name no other test has."""
    name = f"transforms_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    return name


def changed_run(tmp_path: Path, module: str, *active: str, unit: str = "documents") -> RunSpec:
    one, other = (files(write_texts(tmp_path / str(seed), 40, seed)) for seed in range(2))
    allowed = tuple(f"{module}:{name}" for name in ("upper", "twice", "drop"))
    run = small_run(
        one, other, sampling_unit=unit, sampling_probs=(0.6, 0.4), pack_buffer_docs=8, allowed_transforms=allowed
    )
    return transformed(run, *(f"{module}:{name}" for name in active))


def transformed(run: RunSpec, *names: str, workers: int = 0) -> RunSpec:
    return replace(run, data=replace(run.data, transforms=names, loader_workers=workers))


def train(
    run: RunSpec, changes: dict[int, RunSpec], position: object = None, first: int = 0
) -> tuple[list[MicroBatch], list[dict[str, object]]]:
    """(batches, position after each) of the steps from `first` on. `changes`: by the step that they begin with."""
    stream = TrainStream(run, load_tokenizer(run), 0, 1, position)  # type: ignore[arg-type]
    in_force = [changes[step] for step in sorted(changes) if step <= first]
    if in_force and position is not None:
        stream.take_settings(in_force[-1])
    batches, positions = [], []
    for step in range(first, _STEPS):
        if step in changes and not (step == first and position is not None):
            stream.take_settings(changes[step])
        batches.append(stream.next_micro_batch())
        positions.append(through_json(stream.position()))
    stream.close()
    return batches, positions


@pytest.mark.parametrize("unit", ["documents", "tokens"])
@pytest.mark.parametrize("seed", range(3))
def test_each_batch_is_the_same_for_any_number_of_workers_and_after_a_resume(
    tmp_path: Path, module: str, unit: str, seed: int
) -> None:
    draw = random.Random(seed)
    names = [f"{module}:{name}" for name in ("upper", "twice", "drop")]
    run = changed_run(tmp_path, module, *draw.sample(["upper", "twice"], draw.randrange(2)), unit=unit)
    prepare(run)
    steps = {draw.randrange(_STEPS - 4): tuple(draw.sample(names, draw.randrange(1, 4))) for _ in range(3)}
    stopped = draw.randrange(1, _STEPS - 2)

    def with_workers(workers: int) -> tuple[RunSpec, dict[int, RunSpec]]:
        start = transformed(run, *run.data.transforms, workers=workers)
        return start, {step: transformed(run, *active, workers=workers) for step, active in steps.items()}

    expected, positions = train(*with_workers(0))
    for workers in (1, 2, 4):
        found, there = train(*with_workers(workers))
        assert same(found, expected)
        assert there == positions
    for workers in (0, 2):
        found, there = train(*with_workers(workers), positions[stopped - 1], stopped)
        assert same(found, expected[stopped:])
        assert there == positions[stopped:]


def test_a_buffer_has_the_transformations_that_hold_when_it_begins(tmp_path: Path, module: str) -> None:
    run = changed_run(tmp_path, module)
    tokenizer = prepare(run)
    change = 6
    batches, positions = train(transformed(run, workers=2), {change: transformed(run, f"{module}:upper", workers=2)})
    begun = next(step for step, position in enumerate(positions) if "transforms" in position)
    # Workers that had packed buffers in advance would bring the change later.
    assert change <= begun
    assert positions[begun]["buffer"] == positions[change]["buffer"] + 1  # type: ignore[operator]
    texts = [tokenizer.decode(joined([batch])["tokens"].flatten().tolist()) for batch in batches]
    assert all(any(letter.islower() for letter in text) for text in texts[:begun])
    assert not any(letter.islower() for text in texts[begun + 1 :] for letter in text.replace("<|endoftext|>", ""))


def test_held_out_text_is_never_transformed(tmp_path: Path, module: str) -> None:
    run = changed_run(tmp_path, module, "upper")
    tokenizer = prepare(run)
    assert same(held_out_batches(run, tokenizer), held_out_batches(transformed(run), tokenizer))


def test_a_document_whose_text_is_gone_is_left_out(tmp_path: Path, module: str) -> None:
    run = changed_run(tmp_path, module, "drop")
    stream = TrainStream(run, prepare(run), 0, 1, None)
    take(stream, _STEPS)
    source, corpus = stream._reader.corpora[0].source, open_corpora(run, load_tokenizer(run))[0]
    lengths, before = source.lengths(corpus.train), corpus.source.lengths(corpus.train)
    assert 0 < np.count_nonzero(lengths) < np.count_nonzero(before)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transformation_that_fails_names_the_document(tmp_path: Path, module: str, workers: int) -> None:
    run = changed_run(tmp_path, module)
    name = f"{module}:fail"
    run = replace(run, data=replace(run.data, transforms=(name,), allowed_transforms=(name,), loader_workers=workers))
    with pytest.raises(UserError) as caught:
        train(run, {})
    failed = re.fullmatch(rf"{name} failed: ValueError: (\d+)", caught.value.what)
    assert failed is not None
    source, index = divmod(int(failed[1]), 10_000)
    assert caught.value.where == f"document {index + 1} of {run.data.sources[source].path}"


def test_code_that_the_config_does_not_allow_is_not_imported(tmp_path: Path, module: str) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    run = changed_run(tmp_path, module)
    stream = TrainStream(run, prepare(run), 0, 1, None)
    take(stream, 2)
    with pytest.raises(UserError) as caught:
        stream.take_settings(transformed(run, "evil:run"))
    assert caught.value.where == "data.transforms"
    with pytest.raises(UserError, match=r"evil:run is not one of"):
        TrainStream(run, load_tokenizer(run), 0, 1, {**stream.position(), "transforms": [["evil:run", "0"]]})


@pytest.mark.parametrize("name", ["nothing_there:f", "{module}:gone", "{module}:number", "{module}", "sys:intern"])
def test_a_name_that_is_no_function_of_a_file_is_refused(tmp_path: Path, module: str, name: str) -> None:
    run = changed_run(tmp_path, module)
    run = replace(run, data=replace(run.data, allowed_transforms=(name.format(module=module),)))
    with pytest.raises(UserError) as caught:
        TrainStream(run, prepare(run), 0, 1, None)
    assert caught.value.where == "data.allowed_transforms"


def test_a_file_that_was_edited_is_refused_where_a_buffer_needs_it(tmp_path: Path, module: str) -> None:
    run = changed_run(tmp_path, module, "upper")
    stream = TrainStream(run, prepare(run), 0, 1, None)
    take(stream, 2)
    position = stream.position()
    (tmp_path / f"{module}.py").write_text(_MODULE.replace("upper()", "lower()"))
    with pytest.raises(UserError, match="is another one than at the checkpoint"):
        TrainStream(run, load_tokenizer(run), 0, 1, position)


def test_a_text_that_is_no_text_is_refused(tmp_path: Path, module: str) -> None:
    name = f"{module}:not_text"
    run = changed_run(tmp_path, module)
    run = replace(run, data=replace(run.data, transforms=(name,), allowed_transforms=(name,)))
    with pytest.raises(UserError, match="not_text failed"):
        train(run, {})
