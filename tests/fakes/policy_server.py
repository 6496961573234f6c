"""vLLM's server as far as the trainer asks it for rollouts: token ids in and out, weights by the real extension.

It generates with the local engine. Its workers are one `WeightLoader` around a model runner that keeps what it loads.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from prime_train.programs.vllm.extension.prime_train_weights import WeightLoader
from prime_train.trainer.model.decoder import ModelConfig, build, parameter_shapes
from prime_train.trainer.model.hf import hf_name
from prime_train.trainer.rl.engines.engine import GenerationRequest
from prime_train.trainer.rl.engines.local_engine import LocalEngine


class PolicyServer(ThreadingHTTPServer):
    """`faults` maps a path to what its handler does instead: it gets the body, and returns status and answer."""

    daemon_threads = True
    request_queue_size = 128  # connections at once; Python's own 5 are fewer than the requests of an evaluation

    def __init__(self, config: ModelConfig, ctx_tokens: int, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.config = config
        self.ctx_tokens = ctx_tokens
        self.engine = LocalEngine(config, ctx_tokens=ctx_tokens, slots=16)
        self.model = build(config, 0)
        self.worker = WeightLoader()
        self.worker.model_runner = SimpleNamespace(reload_weights=self._reload, get_model=lambda: self.model)
        self.keeps_old_weights = False
        self.calls: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.connections = 0
        self.key = ""  # that every request must carry, except for /health and /metrics
        self.faults: dict[str, Callable[[dict[str, Any]], tuple[int, Any]]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def _reload(self, weights_iterator: Iterable[tuple[str, Tensor]]) -> None:
        loaded = dict(weights_iterator)
        if self.keeps_old_weights:
            return
        weights = {name: loaded[hf_name(name)].float() for name in parameter_shapes(self.config)}
        self.model.load_state_dict(weights)
        self.engine.update(weights, self.engine.version + 1)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path in self.faults:
            return self.faults[path](body)
        if path == "/collective_rpc":
            return 200, {"results": [getattr(self.worker, body["method"])(**body["kwargs"])]}
        if path == "/v1/completions":
            return 200, {"choices": [self._score(body) if "prompt_logprobs" in body else self._continue(body)]}
        return 200, {}

    def look(self, path: str) -> tuple[int, Any]:
        """What a GET is answered with."""
        return (200, {}) if path in ("/health", "/version") else (404, {})

    def _continue(self, body: dict[str, Any]) -> dict[str, Any]:
        stop = frozenset(body["stop_token_ids"])
        if "logit_bias" in body:
            return self._continue_biased(body, stop)
        request = GenerationRequest(tuple(body["prompt"]), body["max_tokens"], body["temperature"], stop, body["seed"])
        answer = self.engine.generate(request)
        return {
            "token_ids": list(answer.tokens),
            "logprobs": {"token_logprobs": list(answer.logprobs)},
            "finish_reason": "stop" if answer.finish == "stop" else "length",
        }

    @torch.no_grad()
    def _continue_biased(self, body: dict[str, Any], stop: frozenset[int]) -> dict[str, Any]:
        """The most probable tokens, where some logits are changed."""
        bias = torch.zeros(self.config.vocab_size)
        for token, by in body["logit_bias"].items():
            bias[int(token)] = by
        tokens: list[int] = list(body["prompt"])
        answer: list[int] = []
        logprobs: list[float] = []
        while len(answer) < body["max_tokens"] and not stop.intersection(answer):
            logits = self.model(torch.tensor([tokens]), torch.arange(len(tokens)).unsqueeze(0), None)[0, -1]  # (V,)
            scored = (logits + bias).log_softmax(-1)
            answer.append(int(scored.argmax()))
            tokens.append(answer[-1])
            logprobs.append(float(scored[answer[-1]]))
        ended = "stop" if answer[-1] in stop else "length"
        return {"token_ids": answer, "logprobs": {"token_logprobs": logprobs}, "finish_reason": ended}

    @torch.no_grad()
    def _score(self, body: dict[str, Any]) -> dict[str, Any]:
        tokens = body["prompt"]
        logits = self.model(torch.tensor([tokens]), torch.arange(len(tokens)).unsqueeze(0), None)[0]  # (T, V)
        logprobs = logits.log_softmax(-1)
        scored = [{str(token): {"logprob": float(logprobs[at, token])}} for at, token in enumerate(tokens[1:])]
        return {"prompt_logprobs": [None, *scored]}


class _Handler(BaseHTTPRequestHandler):
    server: PolicyServer
    protocol_version = "HTTP/1.1"  # connections are kept alive

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_GET(self) -> None:
        self._write(*(self.server.look(self.path) if self._is_allowed() else (401, {})))

    def _is_allowed(self) -> bool:
        key = self.server.key
        return not key or self.path in ("/health", "/metrics") or self.headers.get("Authorization") == f"Bearer {key}"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        self.server.calls.append(self.path)
        self.server.bodies.append(body)
        status, answer = self.server.answer(self.path, body) if self._is_allowed() else (401, {})
        if status == 0:  # the connection ends without an answer
            self.close_connection = True
            self.connection.close()
            return
        self._write(status, answer)

    def _write(self, status: int, answer: Any) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Silence: nobody reads it."""


@contextmanager
def serve(config: ModelConfig, ctx_tokens: int) -> Iterator[PolicyServer]:
    server = PolicyServer(config, ctx_tokens)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        server.engine.close()
