"""A server with the weights of a trainer. The tests of this file share it and follow each other.

It is a fork of a process that has imported vLLM; test_rl_run.py starts such a server as a run does.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from prime_train import spec
from prime_train.core.http import API_KEY, send_request
from prime_train.core.rundir import RunDir
from prime_train.events import EventLog
from prime_train.programs.vllm import program as vllm
from prime_train.spec import Data, RunSpec
from prime_train.spec.rl import Rl
from prime_train.spec.server import Server
from prime_train.supervise.launch.program import Host
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.model.decoder import Decoder, build, config_of
from prime_train.trainer.rl.engines.engine import Engine, EngineError, GenerationRequest
from prime_train.trainer.rl.engines.select import open_engine
from tests.system.vllm.serving import EAGER, START_LIMIT_S, unused_port, wait_until
from tests.unit.trainer import tiny

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

VOCAB_SIZE, CTX_TOKENS = 300, 256
LAST = 10  # the version of the weights that the first test leaves


@dataclass(frozen=True, slots=True)
class Policy:
    """The server, and the engine of its trainer. `faults`: the folder of stale_weights.py."""

    run: RunSpec
    run_dir: RunDir
    engine: Engine
    faults: Path

    def reopen(self) -> Engine:
        """The engine of another attempt of the trainer."""
        self.engine.close()
        return _open_engine(self.run, self.run_dir)

    def model(self, seed: int) -> Decoder:
        """Weights far enough from 0 that the most probable token is clear."""
        model = build(config_of(self.run.model, VOCAB_SIZE), seed)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.mul_(4)
        return model


@pytest.fixture(scope="module")
def key() -> Iterator[str]:
    """The key of the server and of the engine that asks it, as the supervisor makes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(API_KEY, "the-key-of-the-run")
        yield "the-key-of-the-run"


@pytest.fixture(scope="module")
def policy(forking_python: str, key: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Policy]:  # noqa: ARG001
    folder = tmp_path_factory.mktemp("policy")
    server = Server(
        python=forking_python,
        port=unused_port(),
        dtype="float32",
        kv_cache_gib=0.0625,
        enforce_eager=True,
    )
    run = RunSpec(
        run=spec.Run(name="policy", kind="rl", max_steps=3),
        model=spec.Model(layers=2, hidden_size=64, heads=4, kv_heads=2, head_dim=32),
        data=Data(sources=(), ctx_tokens=CTX_TOKENS),
        tokenizer=spec.Tokenizer(vocab_size=VOCAB_SIZE),
        rl=Rl(rollout_limit_s=120.0),
        server=server,
    )
    run_dir = RunDir(folder)
    launch = vllm.plan(run, run_dir, 1)
    for path, text in launch.files:
        path.parent.mkdir(parents=True)
        path.write_text(text)
    host = Host({"PYTHONPATH": str(Path(__file__).parent)}, 2, f"{os.getpid()}:0")
    needs = vllm.plan_environment(run, host)
    faults, log = folder / "faults", folder / "inference.log"
    faults.mkdir()
    environment = {variable.name: variable.value for variable in (*needs.wanted, *needs.forced)}
    argv = [
        argument.replace("prime_train_weights.WeightLoader", "stale_weights.StaleLoader") for argument in launch.argv
    ]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            argv[4:],
            env=os.environ | EAGER | environment | {"FAULTS": str(faults)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        assert launch.ready is not None
        health = launch.ready.health_url
        wait_until(lambda: send_request("GET", health, 5.0).status == 200 or process.poll() is not None, START_LIMIT_S)
        assert process.poll() is None, log.read_text()[-4000:]
        engine = _open_engine(run, run_dir)
        try:
            yield Policy(run, run_dir, engine, faults)
        finally:
            engine.close()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _open_engine(run: RunSpec, run_dir: RunDir) -> Engine:
    attempt = Attempt(run, run_dir, 1, 0, EventLog(run_dir.events, "trainer-001-rank0"), 0)
    return open_engine(attempt, config_of(run.model, VOCAB_SIZE), tiny.CPU)


def make_requests(temperature: float, count: int = 16) -> list[GenerationRequest]:
    generator = torch.Generator().manual_seed(1)
    prompts = [tuple(torch.randint(VOCAB_SIZE, (5 + 7 * n,), generator=generator).tolist()) for n in range(count)]
    return [GenerationRequest(prompt, 24, temperature, frozenset({7}), seed) for seed, prompt in enumerate(prompts)]


@torch.no_grad()
def own_logprobs(model: Decoder, request: GenerationRequest, tokens: tuple[int, ...]) -> torch.Tensor:
    """(answer, V) log-probabilities of the trainer at the positions of the answer."""
    sequence = torch.tensor([request.prompt + tokens])
    logits = model(sequence, torch.arange(sequence.shape[1]).unsqueeze(0), None)[0]
    scaled: torch.Tensor = (logits / (request.temperature or 1.0)).log_softmax(-1)
    return scaled[len(request.prompt) - 1 : -1]


def test_greedy_tokens_and_logprobs_are_the_trainers_own_after_each_update(policy: Policy) -> None:
    requests = make_requests(0.0)
    for version in range(1, LAST + 1):
        model = policy.model(version)
        policy.engine.update(model.state_dict(), version)
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(policy.engine.generate, requests))
        for request, answer in zip(requests, answers, strict=True):
            own = own_logprobs(model, request, answer.tokens)
            assert tuple(own.argmax(-1).tolist()) == answer.tokens
            assert answer.version == version
        assert not (policy.run_dir.handover).exists()


def test_the_divergence_from_the_sampled_distribution_is_small(policy: Policy) -> None:
    model = policy.model(LAST)
    requests = make_requests(0.8)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(policy.engine.generate, requests))
    differences = []
    for request, answer in zip(requests, answers, strict=True):
        own = own_logprobs(model, request, answer.tokens)
        chosen = own.gather(1, torch.tensor(answer.tokens).unsqueeze(1)).squeeze(1)
        differences.append(torch.tensor(answer.logprobs) - chosen)
        assert answer.finish == ("stop" if answer.tokens[-1] == 7 else "length")
    ratio = -torch.cat(differences)
    kl = float((ratio.exp() - 1 - ratio).mean())  # the k3 estimate
    assert 0 <= kl < 1e-3


def test_an_answer_fills_the_context_at_most(policy: Policy) -> None:
    answer = policy.engine.generate(GenerationRequest((1,) * (CTX_TOKENS - 2), 10, 1.0, frozenset(), 1))
    assert (answer.finish, len(answer.tokens)) == ("context", 2)


def test_an_update_under_load_loses_no_request_and_mixes_no_versions(policy: Policy) -> None:
    models = {version: policy.model(version) for version in (LAST, LAST + 1)}
    requests = [replace(request, max_new_tokens=60) for request in make_requests(1.0, 32)]
    with ThreadPoolExecutor(8) as pool:
        pending = [pool.submit(policy.engine.generate, request) for request in requests]
        pending[0].result()
        policy.engine.update(models[LAST + 1].state_dict(), LAST + 1)
        requests += requests[:1]  # on a slow machine the others may have been answered before
        pending.append(pool.submit(policy.engine.generate, requests[-1]))
        answers = [future.result() for future in pending]
    assert {answer.version for answer in answers} == {LAST, LAST + 1}
    for request, answer in zip(requests, answers, strict=True):
        own = own_logprobs(models[answer.version], request, answer.tokens)
        chosen = own.gather(1, torch.tensor(answer.tokens).unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(torch.tensor(answer.logprobs), chosen, atol=1e-3, rtol=0)


def test_no_route_that_changes_anything_answers_without_the_key(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert policy.run.server is not None
    base = policy.run.server.base_url
    call = {"method": "report_version", "kwargs": {}}
    routes = (("POST", "/collective_rpc"), ("POST", "/pause"), ("GET", "/weight_info"), ("POST", "/v1/completions"))
    assert send_request("POST", f"{base}/collective_rpc", 60.0, call).status == 200
    for key in (None, "another"):
        monkeypatch.setenv(API_KEY, key) if key is not None else monkeypatch.delenv(API_KEY)
        assert [send_request(method, f"{base}{path}", 60.0, call).status for method, path in routes] == [401] * 4
        assert [send_request("GET", f"{base}/{open_to_all}", 60.0).status for open_to_all in ("health", "metrics")] == [
            200
        ] * 2


def test_a_server_that_keeps_its_old_weights_is_found(policy: Policy) -> None:
    model = policy.model(LAST + 1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.001)
    (policy.faults / "keeps_old_weights").touch()
    with pytest.raises(EngineError, match=rf"version {LAST + 2}.*former weights"):
        policy.engine.update(model.state_dict(), LAST + 2)
    (policy.faults / "keeps_old_weights").unlink()


def test_a_packed_head_that_a_reload_does_not_replace_is_found(policy: Policy) -> None:
    """The fault of vLLM 0.32 on a CPU that the extension corrects. If this fails, vLLM has corrected it itself."""
    engine = policy.reopen()
    engine.update(policy.model(LAST + 3).state_dict(), LAST + 3)
    (policy.faults / "keeps_old_head").touch()
    with pytest.raises(EngineError, match=rf"version {LAST + 4}.*log-probabilities"):
        engine.update(policy.model(LAST + 4).state_dict(), LAST + 4)
    engine.close()
