"""Tasks of lm-evaluation-harness on the model in training give what they give on its export."""

from __future__ import annotations

import importlib.util
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from prime_train import spec
from prime_train.core.errors import ExitCode, UserError
from prime_train.spec import Benchmark
from prime_train.trainer import seed
from prime_train.trainer.evaluation.lm_eval_tasks import open_tasks
from prime_train.trainer.evaluation.score import Scorer
from prime_train.trainer.loops.step import Training, adamw
from prime_train.trainer.model import hf
from prime_train.trainer.model.decoder import Decoder, build
from prime_train.trainer.parallel import World
from prime_train.trainer.tokenizer import LoadedTokenizer, read_trained, train_bpe
from tests.unit.trainer import tiny
from tests.unit.trainer.benchmarks.questions import WORDS, make_questions

CTX_TOKENS = 96
needs_lm_eval = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None,
    reason="lm-eval is not installed: pip install 'prime-train[eval]'",
)

_CHOICE = """
task: endings
dataset_path: json
dataset_kwargs: {data_files: {test: DATA, train: DATA}}
test_split: test
fewshot_split: train
output_type: multiple_choice
doc_to_text: "{{ctx}}"
doc_to_choice: "{{endings}}"
doc_to_target: label
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
_ROLLING = """
task: texts
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{endings|join(' ')}}"
metric_list: [{metric: bits_per_byte}]
"""
_GENERATE = """
task: answers
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{ctx}}"
doc_to_target: "{{endings[0]}}"
generation_kwargs: {until: ["UNTIL"], max_gen_toks: 40, do_sample: false}
metric_list: [{metric: exact_match}]
"""
_TASKS = ("endings", "texts", "answers")


class Prepared(NamedTuple):
    """A model with clear preferences, its export, and the folder of tasks."""

    model: Decoder
    tokenizer: LoadedTokenizer
    exported: Path
    tasks: Path


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    root = tmp_path_factory.mktemp("lm-eval")
    (root / "bpe").mkdir()
    train_bpe(iter([" ".join(WORDS)] * 20), 300, root / "bpe")
    tokenizer = read_trained(root / "bpe")
    model = build(replace(tiny.CONFIG, vocab_size=tokenizer.vocab_size), seed=2)
    with torch.no_grad():
        model.embedding.weight.mul_(10)
    weights = model.state_dict()
    described = hf.Export(ctx_tokens=CTX_TOKENS, stop_token=tokenizer.eos_id, tokenizer_files=tokenizer.files)
    tiny.save_hf(root / "final", model.config, weights, described)
    rows = make_questions(12)
    rows[0]["ctx"] += "  "  # spaces before an ending move into it
    rows[1]["endings"][0] = "the hill " * 120  # longer than the context
    rows[1]["endings"] = [ending[: 4 * CTX_TOKENS] for ending in rows[1]["endings"]]
    rows[2]["ctx"] = "dog runs " * 150
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "tasks").mkdir()
    for name, text in zip(_TASKS, (_CHOICE, _ROLLING, _GENERATE), strict=True):
        filled = text.replace("DATA", str(root / "rows.jsonl")).replace("UNTIL", "s ")
        (root / "tasks" / f"{name}.yaml").write_text(filled)
    return Prepared(model, tokenizer, root / "final", root / "tasks")


def scorer_of(model: Decoder, batch_tokens: int = 4 * CTX_TOKENS) -> Scorer:
    training = Training(model, adamw(model, spec.Optim()), World(rank=0, size=1), tiny.CPU, None)
    return Scorer(training=training, ctx_tokens=CTX_TOKENS, batch_tokens=batch_tokens)


def asked(prepared: Prepared, task: str, **changes: Any) -> Benchmark:
    return Benchmark(kind="lm-eval", task=task, path=str(prepared.tasks), **changes)


def samples_of(lm: Any, prepared: Prepared, task: str) -> tuple[dict[str, float], list[Any]]:
    """(metrics, the responses of each document) of one task."""
    from lm_eval.evaluator import evaluate

    opened = open_tasks(asked(prepared, task), 0, prepared.tokenizer)
    found = evaluate(lm, opened.loaded, bootstrap_iters=0, log_samples=True)
    metrics = {key: value for key, value in found["results"][task].items() if isinstance(value, float)}
    return metrics, [sample["resps"] for sample in found["samples"][task]]


@needs_lm_eval
def test_each_value_is_that_of_the_exported_model(prepared: Prepared) -> None:
    from lm_eval.models.huggingface import HFLM

    from prime_train.trainer.evaluation.live_model import LiveModel

    exported = HFLM(pretrained=str(prepared.exported), device="cpu", dtype="float32", batch_size=3)
    opened = open_tasks(asked(prepared, "endings"), 0, prepared.tokenizer)
    live = LiveModel(scorer_of(prepared.model), opened.tokenizer)
    assert live.prefix_token_id == exported.prefix_token_id
    assert exported.max_length == CTX_TOKENS
    for task in _TASKS:
        (metrics, found), (expected_metrics, expected) = (samples_of(lm, prepared, task) for lm in (live, exported))
        assert metrics == pytest.approx(expected_metrics, abs=1e-4), task
        assert metrics or task == "answers"
        assert len(found) == len(expected) == 12
        for one, other in zip(_flatten(found), _flatten(expected), strict=True):
            assert one == (other if isinstance(other, str | bool) else pytest.approx(other, abs=1e-4)), task
    kinds = {type(value) for value in _flatten(samples_of(live, prepared, "answers")[1])}
    assert kinds == {str}


def _flatten(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in _flatten(part)]
    return [value]


@needs_lm_eval
def test_the_results_are_the_metrics_of_the_task_and_the_generators_stay(prepared: Prepared) -> None:
    opened = open_tasks(asked(prepared, "endings", examples=8, shots=1), 0, prepared.tokenizer)
    before = seed.rng_state()
    first, second = (opened.evaluate(scorer_of(prepared.model)) for _ in range(2))
    assert seed.rng_state() == before
    assert first == second  # an evaluation leaves nothing behind in the opened tasks
    assert [(result.name, result.metric, result.examples) for result in first] == [
        ("endings", "acc", 8),
        ("endings", "acc_norm", 8),
    ]
    zero_shot = open_tasks(asked(prepared, "endings", examples=8), 0, prepared.tokenizer)
    assert zero_shot.loaded["tasks"]["endings"].get_config("num_fewshot") == 0
    assert opened.loaded["tasks"]["endings"].get_config("num_fewshot") == 1


class OneOfTwo(World):
    """A rank whose sums contain its own part only."""

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return values


@needs_lm_eval
def test_the_ranks_share_the_answers(prepared: Prepared) -> None:
    from lm_eval.api.instance import Instance

    from prime_train.trainer.evaluation.live_model import LiveModel

    tokenizer = open_tasks(asked(prepared, "answers"), 0, prepared.tokenizer).tokenizer
    settings = {"until": ["s "], "max_gen_toks": 20, "do_sample": False}
    requests = [
        Instance("generate_until", {}, (row["ctx"], settings), number) for number, row in enumerate(make_questions(7))
    ]
    alone = LiveModel(scorer_of(prepared.model), tokenizer).generate_until(requests)
    parts = []
    for rank in range(2):
        scorer = scorer_of(prepared.model)
        training = replace(scorer.training, world=OneOfTwo(rank=rank, size=2))
        parts.append(LiveModel(replace(scorer, training=training), tokenizer).generate_until(requests))
    assert any(alone)
    for answer, pair in zip(alone, zip(*parts, strict=True), strict=True):
        assert sorted(pair) == sorted(("", answer))


@needs_lm_eval
def test_nothing_is_downloaded_unless_asked(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = _CHOICE.replace("dataset_path: json", "dataset_path: owner/no-such-data")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("dataset_kwargs"))
    (tmp_path / "endings.yaml").write_text(text)

    def connect(*_: Any) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(UserError) as refused:
        open_tasks(replace(asked(prepared, "endings"), path=str(tmp_path)), 3, prepared.tokenizer)
    assert refused.value.exit_code == ExitCode.OUT_OF_REACH
    assert refused.value.where == "eval.benchmarks.3"
    assert "download = true" in refused.value.fix


@needs_lm_eval
@pytest.mark.parametrize("line", [None, "not json"], ids=["no file", "no JSON"])
def test_data_that_cannot_be_read_are_refused(prepared: Prepared, tmp_path: Path, line: str | None) -> None:
    if line is not None:
        (tmp_path / "rows.jsonl").write_text(line)
    (tmp_path / "endings.yaml").write_text(_CHOICE.replace("DATA", str(tmp_path / "rows.jsonl")))
    with pytest.raises(UserError) as refused:
        open_tasks(replace(asked(prepared, "endings"), path=str(tmp_path)), 0, prepared.tokenizer)
    assert refused.value.what.startswith("the task endings cannot be opened")
    assert refused.value.where == "eval.benchmarks.0"


@needs_lm_eval
def test_an_unknown_task_names_the_nearest(prepared: Prepared) -> None:
    with pytest.raises(UserError) as refused:
        open_tasks(asked(prepared, "hellaswagg"), 0, prepared.tokenizer)
    assert refused.value.fix == 'task = "hellaswag"'


@needs_lm_eval
def test_a_path_that_is_no_folder_is_refused(prepared: Prepared) -> None:
    with pytest.raises(UserError, match="is no folder"):
        open_tasks(replace(asked(prepared, "endings"), path="/nowhere"), 0, prepared.tokenizer)


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is not None, reason="lm-eval is installed")
def test_without_lm_eval_the_extra_is_named(tmp_path: Path) -> None:
    tokenizer = LoadedTokenizer(lambda _: [], lambda _: "", 1, 0, (tmp_path / "tokenizer.json",), "")
    with pytest.raises(UserError) as refused:
        open_tasks(Benchmark(kind="lm-eval", task="arc_easy"), 1, tokenizer)
    assert refused.value.where == "eval.benchmarks.1"
    assert "[eval]" in refused.value.fix
