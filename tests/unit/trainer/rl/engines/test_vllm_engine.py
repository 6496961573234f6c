"""The engine of a vLLM server: answers, updates, and what a wrong or dead server causes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from prime_train.core.rundir import RunDir
from prime_train.core.spans import Spans, read_spans
from prime_train.trainer.model.decoder import Decoder
from prime_train.trainer.rl.engines.canary import Canary
from prime_train.trainer.rl.engines.engine import EngineError, GenerationRequest, PromptTooLongError
from prime_train.trainer.rl.engines.vllm_engine import VllmEngine, VllmServer
from prime_train.trainer.rl.engines.weights import Handover
from tests.fakes.policy_server import PolicyServer, serve
from tests.unit.trainer import tiny
from tests.unit.trainer.rl.engines.test_local_engine import CTX_TOKENS, check_logprobs, request, wide


@pytest.fixture
def server() -> Iterator[PolicyServer]:
    with serve(tiny.CONFIG, CTX_TOKENS) as opened:
        yield opened


def open_engine(server: PolicyServer, folder: Path, spans: Spans | None = None) -> VllmEngine:
    address = VllmServer(
        url=server.url, model="policy", ctx_tokens=CTX_TOKENS, vocab_size=tiny.CONFIG.vocab_size, limit_s=30.0
    )
    handover = Handover(RunDir(folder), shared_memory=folder)
    return VllmEngine(address, handover, Canary(tiny.CONFIG, tiny.CPU, CTX_TOKENS, exact=True), spans)


@pytest.fixture
def engine(server: PolicyServer, tmp_path: Path) -> Iterator[VllmEngine]:
    opened = open_engine(server, tmp_path)
    yield opened
    opened.close()


def nudge(model: Decoder, by: float) -> Decoder:
    """The model after a small update."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(by * torch.rand_like(weight))
    return model


def test_an_answer_has_the_tokens_and_logprobs_of_the_handed_over_weights(
    server: PolicyServer, engine: VllmEngine
) -> None:
    for version in (1, 2, 3):
        model = wide(version)
        engine.update(model.state_dict(), version)
        asked = [request(seed) for seed in range(6)]
        with ThreadPoolExecutor(6) as pool:
            for each, answer in zip(asked, pool.map(engine.generate, asked), strict=True):
                assert answer.version == version
                check_logprobs(model, each, answer)
    assert server.connections <= 6


def test_the_server_samples_from_the_whole_distribution(server: PolicyServer, engine: VllmEngine) -> None:
    engine.update(wide(1).state_dict(), 1)
    engine.generate(GenerationRequest((1, 2), 100, 0.7, frozenset({9, 3}), -1))
    body = server.bodies[-1]
    expected = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "temperature": 0.7}
    assert {name: body[name] for name in expected} == expected
    assert (body["max_tokens"], body["stop_token_ids"]) == (CTX_TOKENS - 2, [3, 9])
    assert 0 <= body["seed"] < 2**63


def test_an_update_pauses_the_server_and_empties_its_cache(server: PolicyServer, engine: VllmEngine) -> None:
    engine.update(wide(1).state_dict(), 1)
    order = ["/pause?mode=wait", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"]
    assert server.calls == [*order, "/v1/completions"]
    assert {"new_version": "1"} in server.bodies


def test_an_update_waits_for_requests_and_holds_new_ones_back(server: PolicyServer, engine: VllmEngine) -> None:
    engine.update(wide(1).state_dict(), 1)
    entered, may_answer = threading.Event(), threading.Event()

    def slow(body: dict[str, Any]) -> tuple[int, Any]:
        entered.set()
        may_answer.wait(30)
        del server.faults["/v1/completions"]
        return server.answer("/v1/completions", body)

    server.faults["/v1/completions"] = slow
    with ThreadPoolExecutor(3) as pool:
        before = pool.submit(engine.generate, request(1))
        entered.wait(30)
        update = pool.submit(engine.update, wide(2).state_dict(), 2)
        tiny.until(lambda: engine._updating)
        after = pool.submit(engine.generate, request(1))
        assert server.calls.count("/pause?mode=wait") == 1
        may_answer.set()
        update.result()
        assert (before.result().version, after.result().version) == (1, 2)
    check_logprobs(wide(1), request(1), before.result())
    check_logprobs(wide(2), request(1), after.result())


def test_a_server_that_keeps_its_old_weights_is_found(server: PolicyServer, engine: VllmEngine) -> None:
    model = wide(1)
    engine.update(model.state_dict(), 1)
    server.keeps_old_weights = True
    with pytest.raises(EngineError, match=r"version 2.*former weights"):
        engine.update(nudge(model, 0.0003).state_dict(), 2)
    with pytest.raises(EngineError, match="former weights"):
        engine.generate(request(1))


def test_a_server_with_other_weights_is_found(server: PolicyServer, engine: VllmEngine) -> None:
    server.keeps_old_weights = True
    with pytest.raises(EngineError, match="differ from the trainer's"):
        engine.update(wide(1).state_dict(), 1)


def test_a_worker_that_has_not_loaded_is_found(server: PolicyServer, engine: VllmEngine) -> None:
    held = server.worker.load_handover
    for wrong, match in (
        ({"version": 7}, "holds version 7"),
        ({"error": "no room"}, "worker 1: no room"),
        (None, "worker 1: None"),
    ):
        opened = open_engine(server, Path(engine._handover._disk.parent))
        server.faults["/collective_rpc"] = lambda body, wrong=wrong: (  # type: ignore[misc]
            200,
            {"results": [held(**body["kwargs"]), wrong]},
        )
        with pytest.raises(EngineError, match=match):
            opened.update(wide(1).state_dict(), 1)
        opened.close()


@pytest.mark.parametrize(
    ("status", "answer", "match"),
    [
        (500, {"error": {"message": "EngineCore encountered an issue."}}, "500.*EngineCore"),
        (200, b"not json", "no JSON"),
        (200, {"choices": []}, "no tokens"),
        (200, [1], "no tokens"),
        (200, {"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": []}, "finish_reason": "stop"}]}, "answer"),
        (200, {"choices": [{"token_ids": ["x"], "logprobs": {"token_logprobs": [0.1]}, "finish_reason": "stop"}]}, "x"),
        (
            200,
            b'{"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [NaN]}, "finish_reason": "stop"}]}',
            "nan",
        ),
        (
            200,
            {"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [0.1]}, "finish_reason": "abort"}]},
            "abo",
        ),
        (0, None, "v1/completions"),
    ],
)
def test_an_answer_of_another_form_is_an_error(
    server: PolicyServer, engine: VllmEngine, status: int, answer: Any, match: str
) -> None:
    engine.update(wide(1).state_dict(), 1)
    server.faults["/v1/completions"] = lambda _body: (status, answer)
    with pytest.raises(EngineError, match=match):
        engine.generate(request(1))


def test_an_answer_without_an_end_is_refused(
    server: PolicyServer, engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.update(wide(1).state_dict(), 1)
    monkeypatch.setattr("prime_train.trainer.rl.engines.http_client.MAX_ANSWER_BYTES", 2**20)
    server.faults["/v1/completions"] = lambda _body: (200, b"x" * 2**21)
    with pytest.raises(EngineError, match="more than 1 MiB"):
        engine.generate(request(1))


def test_a_connection_that_the_server_closed_while_idle_is_replaced(server: PolicyServer, engine: VllmEngine) -> None:
    engine.update(wide(1).state_dict(), 1)
    ends = iter([0])

    def end_once(body: dict[str, Any]) -> tuple[int, Any]:
        if next(ends, None) == 0:
            return 0, None
        del server.faults["/v1/completions"]
        return server.answer("/v1/completions", body)

    server.faults["/v1/completions"] = end_once
    check_logprobs(wide(1), request(2), engine.generate(request(2)))


def test_a_server_that_is_gone_is_named_at_once(tmp_path: Path) -> None:
    with serve(tiny.CONFIG, CTX_TOKENS) as server:
        engine = open_engine(server, tmp_path)
        engine.update(wide(1).state_dict(), 1)
    with pytest.raises(EngineError, match=rf"127\.0\.0\.1:{server.server_port}.*refused"):
        engine.generate(request(1))
    engine.close()


def test_a_close_ends_the_requests_in_progress(server: PolicyServer, engine: VllmEngine) -> None:
    engine.update(wide(1).state_dict(), 1)
    entered, may_end = threading.Event(), threading.Event()

    def hang(_body: dict[str, Any]) -> tuple[int, Any]:
        entered.set()
        may_end.wait(30)
        return 200, {}

    server.faults["/v1/completions"] = hang
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(engine.generate, request(1))
        entered.wait(30)
        engine.close()
        with pytest.raises(EngineError, match="closed"):
            pending.result()
        may_end.set()


def test_prompts_that_the_server_must_not_get(server: PolicyServer, engine: VllmEngine) -> None:
    with pytest.raises(EngineError, match="no weights"):
        engine.generate(request(1))
    engine.update(wide(1).state_dict(), 1)
    sent = len(server.calls)
    with pytest.raises(PromptTooLongError):
        engine.generate(replace(request(1), prompt=(1,) * CTX_TOKENS))
    for prompt in ((), (tiny.CONFIG.vocab_size,), (-1,)):
        with pytest.raises(ValueError, match="prompt"):
            engine.generate(replace(request(1), prompt=prompt))
    assert len(server.calls) == sent


def test_the_api_key_of_the_environment_is_sent(
    server: PolicyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    opened = open_engine(server, tmp_path)
    assert opened._connections._headers["Authorization"] == "Bearer secret"
    opened.close()


def test_spans_name_the_rollout(server: PolicyServer, tmp_path: Path) -> None:
    file = tmp_path / "spans.jsonl"
    opened = open_engine(server, tmp_path, Spans("engine", str(file)))
    opened.update(wide(1).state_dict(), 1)
    opened.generate(request(3, lane="rollout-3", max_new_tokens=4, stop_tokens=frozenset()))
    opened.close()
    spans = [(span.component, span.count) for span in read_spans(file) if span.lane == "rollout-3"]
    assert spans == [("queue", 0), ("decode", 4)]
