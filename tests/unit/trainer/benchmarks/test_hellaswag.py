"""The most likely of four endings, from a local file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from prime_train import spec
from prime_train.core.errors import UserError
from prime_train.spec import Benchmark
from prime_train.trainer.evaluation.hellaswag import HellaSwag, open_hellaswag, read_questions
from prime_train.trainer.evaluation.score import Scorer
from prime_train.trainer.loops.step import Training, adamw
from prime_train.trainer.model.decoder import Decoder, build
from prime_train.trainer.parallel import World
from prime_train.trainer.tokenizer import LoadedTokenizer, read_trained, train_bpe
from tests.unit.trainer import tiny
from tests.unit.trainer.benchmarks.questions import WORDS, make_questions, write_questions

CTX_TOKENS = 64


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> LoadedTokenizer:
    folder = tmp_path_factory.mktemp("bpe")
    train_bpe(iter([" ".join(WORDS)] * 20), 290, folder)
    return read_trained(folder)


def model_for(tokenizer: LoadedTokenizer, seed: int = 1) -> Decoder:
    return build(replace(tiny.CONFIG, vocab_size=tokenizer.vocab_size), seed)


def scorer_of(model: Decoder, batch_tokens: int = 1024, ctx_tokens: int = CTX_TOKENS) -> Scorer:
    training = Training(model, adamw(model, spec.Optim()), World(rank=0, size=1), tiny.CPU, None)
    return Scorer(training=training, ctx_tokens=ctx_tokens, batch_tokens=batch_tokens)


def opened(
    file: Path, tokenizer: LoadedTokenizer, ctx_tokens: int = CTX_TOKENS, examples: int | None = None
) -> HellaSwag:
    return open_hellaswag(Benchmark(kind="hellaswag", path=str(file), examples=examples), tokenizer, ctx_tokens)


def naive_scores(model: Decoder, tokenizer: LoadedTokenizer, row: dict[str, Any]) -> list[tuple[float, float]]:
    """(mean, sum) of the log-probabilities of each ending, one forward for each."""
    found = []
    for ending in row["endings"]:
        context, wanted = tokenizer.encode(row["ctx"]), tokenizer.encode(" " + ending)
        tokens = torch.tensor([context + wanted])  # (1, T)
        with torch.no_grad():
            logits = model(tokens, torch.arange(tokens.shape[1])[None], None)[0]  # (T, V)
        log_probs = [
            float(logits[len(context) - 1 + place].log_softmax(-1)[token]) for place, token in enumerate(wanted)
        ]
        found.append((sum(log_probs) / len(wanted), sum(log_probs)))
    return found


def favourite(scores: list[tuple[float, float]], which: int) -> int:
    """The ending with the highest mean, or sum, of its log-probabilities."""
    return max(range(4), key=[pair[which] for pair in scores].__getitem__)


def test_a_random_model_is_right_in_a_quarter_of_balanced_questions(tmp_path: Path, tokenizer: LoadedTokenizer) -> None:
    file = write_questions(tmp_path / "questions.jsonl", make_questions(1200))
    acc_norm, acc = opened(file, tokenizer).evaluate(scorer_of(model_for(tokenizer), batch_tokens=8192))
    assert (acc_norm.name, acc_norm.metric, acc_norm.examples) == ("hellaswag", "acc_norm", 1200)
    assert acc_norm.value == pytest.approx(0.25, abs=0.03)
    assert acc.value == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("batch_tokens", [1, 200, 4096])
def test_it_equals_a_naive_reference(tmp_path: Path, tokenizer: LoadedTokenizer, batch_tokens: int) -> None:
    rows = make_questions(40, seed=5)
    model = model_for(tokenizer, seed=3)
    with torch.no_grad():
        model.embedding.weight.mul_(20)  # clear preferences, so that no rounding decides
    answers = [naive_scores(model, tokenizer, row) for row in rows]
    expected = {
        metric: sum(favourite(scores, which) == row["label"] for row, scores in zip(rows, answers, strict=True))
        / len(rows)
        for which, metric in enumerate(("acc_norm", "acc"))
    }
    file = write_questions(tmp_path / "questions.jsonl", rows)
    found = opened(file, tokenizer).evaluate(scorer_of(model, batch_tokens))
    assert {result.metric: result.value for result in found} == expected


def test_a_trained_preference_is_found(tmp_path: Path, tokenizer: LoadedTokenizer) -> None:
    """With the model's own favourite as the right ending, every answer is right."""
    rows = make_questions(30, seed=8)
    model = model_for(tokenizer, seed=3)
    with torch.no_grad():
        model.embedding.weight.mul_(20)
    for row in rows:
        scores = naive_scores(model, tokenizer, row)
        row["label"] = favourite(scores, 0)
    file = write_questions(tmp_path / "questions.jsonl", rows)
    assert opened(file, tokenizer).evaluate(scorer_of(model))[0].value == 1.0


def test_a_long_context_loses_its_beginning(tmp_path: Path, tokenizer: LoadedTokenizer) -> None:
    (row,) = make_questions(1)
    long = {**row, "ctx": "cats " * 100 + row["ctx"]}
    file = write_questions(tmp_path / "questions.jsonl", [long])
    swag = opened(file, tokenizer)
    model = model_for(tokenizer)
    (swag_norm, _) = swag.evaluate(scorer_of(model))
    kept = CTX_TOKENS + 1
    for ending in swag.endings:
        tokens = [*swag.contexts[0].tolist(), *ending.tolist()][-kept:]
        assert len(tokens) == kept
    assert swag_norm.examples == 1


def test_only_the_first_examples_are_asked(tmp_path: Path, tokenizer: LoadedTokenizer) -> None:
    rows = make_questions(6)
    file = write_questions(tmp_path / "questions.jsonl", [*rows[:5], {"label": 9}])
    assert len(opened(file, tokenizer, examples=5).labels) == 5


def test_the_label_may_be_text_as_on_the_hub(tmp_path: Path) -> None:
    (row,) = make_questions(1)
    file = write_questions(tmp_path / "questions.jsonl", [{**row, "label": "3"}])
    assert [question.label for question in read_questions(file)] == [3]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"label": 4}, "label is '4', not 0, 1, 2 or 3"),
        ({"label": -1}, "label is '-1', not 0, 1, 2 or 3"),
        ({"label": ""}, "label is '', not 0, 1, 2 or 3"),
        ({"label": True}, "label is 'True', not 0, 1, 2 or 3"),
        ({"label": 1.0}, "label is '1.0', not 0, 1, 2 or 3"),
        ({"label": None}, "label is 'None', not 0, 1, 2 or 3"),
        ({"endings": ["a", "b", "c"]}, "endings are no list of 4 texts"),
        ({"endings": ["a", "b", "c", 4]}, "an ending is no text"),
        ({"endings": ["a", "b", "c", " "]}, "an ending is no text"),
        ({"ctx": ""}, "ctx is no text"),
    ],
)
def test_a_line_that_is_no_question_is_refused(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    rows = make_questions(3)
    file = write_questions(tmp_path / "questions.jsonl", [*rows[:2], {**rows[2], **change}])
    with pytest.raises(UserError) as refused:
        list(read_questions(file))
    assert refused.value.what == what
    assert refused.value.where == f"{file}:3"
    assert refused.value.why
    assert refused.value.fix


@pytest.mark.parametrize("line", ["not json", "[1, 2]", json.dumps({"ctx": "a"})[:-1], '{"a": 1e999}'])
def test_a_damaged_line_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text("\n" + line + "\n")
    with pytest.raises(UserError) as refused:
        list(read_questions(file))
    assert refused.value.where == f"{file}:2"


def test_a_file_without_questions_or_that_is_none_is_refused(tmp_path: Path, tokenizer: LoadedTokenizer) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UserError, match="no questions"):
        opened(tmp_path / "empty.jsonl", tokenizer)
    with pytest.raises(UserError, match="cannot be read"):
        opened(tmp_path / "absent.jsonl", tokenizer)
    with pytest.raises(UserError, match="cannot be read"):
        opened(tmp_path, tokenizer)


def test_an_ending_beyond_the_context_is_refused(tmp_path: Path, tokenizer: LoadedTokenizer) -> None:
    (row,) = make_questions(1)
    row["endings"][2] = "größe " * 100
    file = write_questions(tmp_path / "questions.jsonl", [row])
    with pytest.raises(UserError, match=r"ending 2 has \d+ tokens"):
        opened(file, tokenizer)
