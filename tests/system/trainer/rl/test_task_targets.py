"""Tasks of a run without rollouts that its server answers: weights handed over, answers, faults, waiting ranks."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from prime_train import spec
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.environments.load import open_environments
from prime_train.events import Phase, TasksEvaluated, TrainerFailed
from prime_train.spec.rl import Rl, TaskSource
from prime_train.spec.server import Server
from prime_train.trainer import parallel
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.loops.step import Training, adamw
from prime_train.trainer.model.decoder import Decoder, build, config_of
from prime_train.trainer.parallel import World
from prime_train.trainer.rl.engines.engine import EngineError, GenerationRequest
from prime_train.trainer.rl.rollouts.task_targets import TaskTargets, open_targets
from tests.fakes.policy_server import PolicyServer, serve
from tests.system.trainer.rl.test_evaluate_tasks import SOURCES, characters, open_attempt, solve
from tests.system.trainer.two_ranks import run_on_two_ranks
from tests.unit.trainer import tiny
from tests.unit.trainer.rl.chats import CharacterChat, FunctionEngine, Scripted

# A new model with tied embeddings repeats the end of its prompt, which ends the answer.
CONFIG = replace(tiny.CONFIG, tie_embeddings=False)
ROWS = 80  # of the server's embedding, where a trained tokenizer has 64 tokens


def training_of(model: Decoder) -> Training:
    return Training(model, adamw(model, spec.Optim()), World(rank=0, size=1), tiny.CPU, None)


def served_attempt(tmp_path: Path, server: PolicyServer, rows: int = 64) -> Attempt:
    attempt = open_attempt(tmp_path)
    run = replace(
        attempt.run,
        server=Server(port=server.server_port, dtype="float32"),
        rl=Rl(handover="disk", rollout_limit_s=60.0),
        tokenizer=spec.Tokenizer(vocab_size=rows),
    )
    return replace(attempt, run=run)


def open_served(attempt: Attempt) -> TaskTargets:
    return open_targets(attempt, characters(), CONFIG, tiny.CPU)


def scores(attempt: Attempt) -> list[tuple[str, int, float, float]]:
    found = [event for event in tiny.events(attempt.run_dir) if isinstance(event, TasksEvaluated)]
    return [(event.environment, event.step, event.reward, event.answer_tokens) for event in found]


def double(model: Decoder) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2)


def test_each_evaluation_is_by_the_weights_of_its_step(tmp_path: Path) -> None:
    model = build(CONFIG, 1)
    with serve(CONFIG, 64) as server:
        attempt = served_attempt(tmp_path / "served", server)
        targets = open_served(attempt)
        local_attempt = open_attempt(tmp_path / "local")
        local = open_targets(local_attempt, characters(), CONFIG, tiny.CPU)
        random_state = torch.get_rng_state()
        for step in (3, 6):
            double(model)
            before = {name: weight.clone() for name, weight in model.state_dict().items()}
            targets.measure(attempt, training_of(model), step)
            local.measure(local_attempt, training_of(model), step)
            assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
        targets.close()
        local.close()
        assert torch.equal(random_state, torch.get_rng_state())
        assert [body["new_version"] for body in server.bodies if "new_version" in body] == ["3", "6"]
        assert server.calls.count("/collective_rpc") == 2
    assert len(scores(attempt)) == 4
    assert all(answer_tokens > 1 for *_, answer_tokens in scores(attempt))
    assert scores(attempt) == scores(local_attempt)
    details = [event.detail for event in tiny.events(attempt.run_dir) if isinstance(event, Phase)]
    assert details == ["vLLM gets the weights of step 3", "vLLM gets the weights of step 6"]
    assert not attempt.run_dir.handover.exists()


def test_no_answer_has_a_token_that_the_tokenizer_has_not(tmp_path: Path) -> None:
    """The model dislikes every token, so the most probable one would be one of the rows of zeros."""
    model = build(tiny.CONFIG, 1)
    with torch.no_grad():
        model.embedding.weight.copy_(1 + 0.01 * model.embedding.weight)
        model.norm.weight.fill_(-1)
    with serve(replace(tiny.CONFIG, vocab_size=ROWS), 64) as server:
        attempt = served_attempt(tmp_path / "served", server, ROWS)
        targets = open_targets(attempt, characters(), tiny.CONFIG, tiny.CPU)
        targets.measure(attempt, training_of(model), 1)
        assert targets.engine is not None
        answer = targets.engine.generate(GenerationRequest((1, 2, 3), 8, 0.0, frozenset(), 0))
        assert max(answer.tokens) < tiny.CONFIG.vocab_size
        targets.close()
        assert server.model.embedding.weight.shape[0] == ROWS
    local_attempt = open_attempt(tmp_path / "local")
    local = open_targets(local_attempt, characters(), tiny.CONFIG, tiny.CPU)
    local.measure(local_attempt, training_of(model), 1)
    local.close()
    assert scores(attempt) == scores(local_attempt)


def test_a_server_that_keeps_its_old_weights_ends_the_evaluation(tmp_path: Path) -> None:
    model = build(CONFIG, 1)
    with serve(CONFIG, 64) as server:
        attempt = served_attempt(tmp_path, server)
        targets = open_served(attempt)
        targets.measure(attempt, training_of(model), 1)
        server.keeps_old_weights = True
        double(model)
        with pytest.raises(EngineError, match="version 2"):
            targets.measure(attempt, training_of(model), 2)
        targets.close()
    assert {step for _, step, *_ in scores(attempt)} == {1}


def test_a_server_that_dies_is_named(tmp_path: Path) -> None:
    with serve(CONFIG, 64) as server:
        attempt = served_attempt(tmp_path, server)
        targets = open_served(attempt)
        server.faults["/v1/completions"] = partial(_dies_in_answers, server)
        with pytest.raises(EngineError, match=f"127.0.0.1:{server.server_port}/v1/completions"):
            targets.measure(attempt, training_of(build(CONFIG, 1)), 1)
        targets.close()
    assert scores(attempt) == []


def _dies_in_answers(server: PolicyServer, body: dict[str, Any]) -> tuple[int, Any]:
    """It answers the comparison of its weights, and no task."""
    return (200, {"choices": [server._score(body)]}) if "prompt_logprobs" in body else (0, None)


def test_an_environment_that_fails_ends_the_run(tmp_path: Path) -> None:
    with serve(CONFIG, 64) as server:
        attempt = served_attempt(tmp_path, server)
        attempt = replace(attempt, run=replace(attempt.run, tasks=SOURCES[:1]))
        opened = open_served(attempt)
        failing = replace(opened, environments=(Scripted(reward=lambda: float("nan")),))
        with pytest.raises(UserError, match="12 of the last 12 rollouts failed"):
            failing.measure(attempt, training_of(build(CONFIG, 1)), 1)
        opened.close()


def test_an_answer_has_at_most_task_tokens(tmp_path: Path) -> None:
    lengths = []
    for task_tokens in (None, 3):
        attempt = open_attempt(tmp_path / str(task_tokens))
        run = replace(attempt.run, eval=replace(attempt.run.eval, task_tokens=task_tokens))
        engine = FunctionEngine(solve)
        targets = TaskTargets(open_environments(SOURCES, 7), CharacterChat(), CONFIG, engine)
        targets.measure(replace(attempt, run=run), training_of(build(CONFIG, 1)), 1)
        lengths.append({request.max_new_tokens for request in engine.requests})
    assert lengths == [{64}, {3}]


# --- several ranks ---------------------------------------------------------------------------------


def _evaluate_on_a_rank(folder: Path, rank: int) -> list[str]:
    """The environments that were evaluated when this rank went on."""
    attempt = replace(open_attempt(folder / str(rank)), rank=rank)
    world = World(rank, 2, waiting=dist.new_group(backend="gloo"))
    model = build(CONFIG, 1)
    training = Training(model, adamw(model, spec.Optim()), world, tiny.CPU, None)
    environments = open_environments(SOURCES, 7) if rank == 0 else ()
    chat = CharacterChat() if rank == 0 else None
    TaskTargets(environments, chat, CONFIG, FunctionEngine(solve)).measure(attempt, training, 5)
    done = tiny.events(RunDir(folder / "0" / "run"))
    return [event.environment for event in done if isinstance(event, TasksEvaluated)]


def _waiting_limits(port: int, rank: int) -> list[Any]:
    """Seconds that rank 0 may need alone, and of an exchange."""
    dist.destroy_process_group()
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    world = parallel.join(2, tiny.CPU, limit_s=60.0)
    world.wait_long()
    groups: list[Any] = [world.waiting, dist.group.WORLD]
    limits = [group._get_backend(torch.device("cpu")).options._timeout for group in groups]
    return [limit / timedelta(seconds=1) for limit in limits]


def test_every_rank_goes_on_when_the_tasks_are_answered(tmp_path: Path) -> None:
    found = run_on_two_ranks(partial(_evaluate_on_a_rank, tmp_path), tmp_path)
    assert found == [["reverse-text", "sort-digits"]] * 2


def test_the_limit_of_an_exchange_is_not_that_of_an_evaluation(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert run_on_two_ranks(partial(_waiting_limits, port), tmp_path) == [[7 * 86400, 60]] * 2


# --- whole trainers --------------------------------------------------------------------------------


def served_run(texts: Path, server: PolicyServer | None, **parts: Any) -> spec.RunSpec:
    run = tiny.run_spec(texts, eval=spec.Eval(interval_steps=4, tasks=4), **parts)
    run = replace(run, model=replace(run.model, tie_embeddings=False))
    address = None if server is None else Server(port=server.server_port, dtype="float32")
    return replace(run, tasks=(TaskSource(kind="reverse-text"),), server=address)


def test_a_pretraining_by_two_processes_is_that_without_a_server(texts: Path, tmp_path: Path) -> None:
    """The steps are bit-equal, and so are the rewards. Each evaluation has the weights of its step."""
    two = {"parallel": spec.Parallel(processes=2), "batch": spec.Batch(micro_batch=2, global_batch=4)}
    alone = tiny.prepare(tmp_path / "alone", served_run(texts, None, **two))
    assert tiny.train(alone, processes=2)[0] == 0
    with serve(config_of(served_run(texts, None).model, 300), 32) as server:
        served = tiny.prepare(tmp_path / "served", served_run(texts, server, **two))
        code, output = tiny.train(served, processes=2)
        assert code == 0, output
        assert [body["new_version"] for body in server.bodies if "new_version" in body] == ["4", "8", "10"]
    measured = [
        [(event.step, event.reward) for event in tiny.events(run_dir) if isinstance(event, TasksEvaluated)]
        for run_dir in (alone, served)
    ]
    assert measured[0] == measured[1]
    assert [step for step, _ in measured[1]] == [4, 8, 10]
    losses = [[(line["step"], line["loss"], line["grad_norm"]) for line in tiny.metrics(d)] for d in (alone, served)]
    assert losses[0] == losses[1]


def test_a_server_that_dies_in_an_evaluation_ends_the_attempt(texts: Path, tmp_path: Path) -> None:
    with serve(config_of(served_run(texts, None).model, 300), 32) as server:
        server.faults["/v1/completions"] = partial(_dies_in_answers, server)
        run_dir = tiny.prepare(tmp_path, served_run(texts, server))
        assert tiny.train(run_dir)[0] == 1
    (failed,) = [event for event in tiny.events(run_dir) if isinstance(event, TrainerFailed)]
    assert "EngineError" in failed.what
    assert json.dumps(failed.what).count("/v1/completions") == 1
