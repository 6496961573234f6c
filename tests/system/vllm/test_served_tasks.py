"""A pretraining whose tasks a real server answers, with a tokenizer of fewer tokens than the server has rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.core.errors import ExitCode
from prime_train.events import Phase, TasksEvaluated, TrainerStarted
from tests.system.vllm.serving import START_LIMIT_S, Served, started, unused_port
from tests.unit.trainer.tiny import write_texts

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

TRAIN_LIMIT_S = 600.0
_ROWS = 2000
_CONFIG = """
[run]
name = "served"
max_steps = 20
[model]
layers = 2
hidden_size = 64
heads = 4
kv_heads = 2
head_dim = 32
tie_embeddings = false            # a new model with tied ones repeats the end of its prompt
[data]
ctx_tokens = 64
loader_workers = 0
[[data.sources]]
kind = "files"
path = "{texts}/*.txt"
[tokenizer]
vocab_size = {rows}
[batch]
micro_batch = 8
[eval]
interval_steps = 10
tasks = 8
task_tokens = 8
[[tasks]]
kind = "reverse-text"
"""
_SERVER = """
[inference]
python = "{python}"
port = {port}
dtype = "float32"
kv_cache_gib = 0.0625
enforce_eager = true
ready_limit_s = {limit_s}
"""


def _scores(run: Served) -> list[tuple[int, float, float]]:
    return [(event.step, event.reward, event.answer_tokens) for event in run.events(TasksEvaluated)]


def test_a_server_answers_as_the_trainer_does(python: str, tmp_path: Path) -> None:
    config = _CONFIG.format(texts=write_texts(tmp_path / "texts"), rows=_ROWS)
    own = {"PRIME_TRAIN_CACHE": str(tmp_path / "cache")}
    scores = []
    for name, server in (("local", ""), ("served", _SERVER)):
        port = unused_port()
        text = config + server.format(python=python, port=port, limit_s=START_LIMIT_S)
        with started(tmp_path / name, text, port, own) as run:
            run.supervisor.wait(START_LIMIT_S + TRAIN_LIMIT_S)
            assert run.supervisor.returncode == ExitCode.OK, run.events_text()
            scores.append(_scores(run))
            assert run.events(TrainerStarted)[0].vocab_size < _ROWS
            assert run.processes() == []
    handed_over = [event.detail for event in run.events(Phase) if "vLLM" in event.detail]
    assert handed_over == ["vLLM gets the weights of step 10", "vLLM gets the weights of step 20"]
    assert [step for step, *_ in scores[0]] == [10, 20]
    assert all(answer_tokens > 1 for *_, answer_tokens in scores[0])
    # Where two tokens are nearly as probable, the rounding of the two engines decides.
    assert scores[1] == [pytest.approx(score, abs=0.05) for score in scores[0]]
