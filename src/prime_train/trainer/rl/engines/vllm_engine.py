"""Generates by the vLLM server of the run, which is a process of its own. Token ids in and out, never text.

An update waits for the requests in progress and holds the new ones back, so every answer is by one version, and the
server's cache of prefixes never mixes two.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from prime_train.core.spans import Span, Spans
from prime_train.trainer.model.decoder import VOCAB_ROWS
from prime_train.trainer.rl.engines.canary import Canary
from prime_train.trainer.rl.engines.engine import EngineError, Generation, GenerationRequest, PromptTooLongError
from prime_train.trainer.rl.engines.http_client import ServerConnections
from prime_train.trainer.rl.engines.weights import Handover, WrittenWeights

_SEED_BITS = 2**63 - 1
# The defaults of a model's generation_config.json would change the distribution that is sampled from.
_PLAIN_SAMPLING = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}
_NEVER = -100.0  # the least that vLLM adds to a logit; that of a row of zeros is 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmServer:
    """What is known of the server. `ctx_tokens`: of prompt and answer; `limit_s`: of one request.

    `rows`: of its embedding, if these are more than `vocab_size`. The rest are of no token, and no answer has them.
    """

    url: str
    model: str
    ctx_tokens: int
    vocab_size: int
    limit_s: float
    rows: int = 0


class VllmEngine:
    """An `Engine`. After an EngineError of `update` it answers nothing more."""

    def __init__(self, server: VllmServer, handover: Handover, canary: Canary, spans: Spans | None = None) -> None:
        self._server = server
        self._handover = handover
        self._canary = canary
        self._spans = spans or Spans("engine")
        self._connections = ServerConnections(server.url)
        unused = {str(token): _NEVER for token in range(server.vocab_size, server.rows)}
        self._sampling = _PLAIN_SAMPLING | ({"logit_bias": unused} if unused else {})
        self._version = 0
        self._in_progress = 0
        self._updating = False
        self._failure = ""
        self._changed = threading.Condition()  # guards everything above
        self._update_lock = threading.Lock()

    @property
    def version(self) -> int:
        return self._version

    @property
    def ctx_tokens(self) -> int:
        return self._server.ctx_tokens

    def generate(self, request: GenerationRequest) -> Generation:
        server, submitted_s = self._server, time.monotonic()
        room = server.ctx_tokens - len(request.prompt)
        if room < 1:
            raise PromptTooLongError(f"{len(request.prompt)} tokens, and the context has {server.ctx_tokens}")
        self._check_tokens(request.prompt)
        body = {
            **self._sampling,
            "model": server.model,
            "prompt": request.prompt,
            "max_tokens": min(room, request.max_new_tokens),
            "temperature": request.temperature,
            "seed": request.seed & _SEED_BITS,
            "stop_token_ids": sorted(request.stop_tokens),
            "logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,  # as names of the log-probabilities, which need no tokenizer then
        }
        with self._enter() as version:
            sent_s = time.monotonic()
            answer = self._connections.post("/v1/completions", body, server.limit_s)
        generation = _read_generation(answer, request, version)
        if self._spans.on:
            lane = request.lane or f"request-{request.seed}"
            self._spans.add(Span("queue", lane, submitted_s, sent_s))
            self._spans.add(Span("decode", lane, sent_s, time.monotonic(), 0, len(generation.tokens)))
        return generation

    def update(self, weights: Mapping[str, Tensor], version: int) -> None:
        with self._update_lock:
            try:
                weights = _fill_rows(weights, self._server.rows)
                written = self._handover.write(weights, version)
                self._canary.learn(weights)
                with self._hold_requests():
                    self._load(written)
                    self._version = version
                self._handover.clear()
            except (EngineError, OSError) as error:
                reason = f"vLLM does not have the weights of version {version}: {error}"
                self._fail(reason)
                raise EngineError(reason) from error

    def close(self) -> None:
        self._fail("the engine is closed")
        self._connections.close()
        self._handover.clear()
        self._spans.flush()

    def _check_tokens(self, prompt: tuple[int, ...]) -> None:
        """A token outside the vocabulary ends the engine core of a server without a tokenizer (vLLM 0.32, CPU)."""
        if not prompt or not 0 <= min(prompt) <= max(prompt) < self._server.vocab_size:
            raise ValueError(f"the prompt is empty, or has a token outside the vocabulary of {self._server.vocab_size}")

    @contextmanager
    def _enter(self) -> Iterator[int]:
        """Count a request in progress, after an update that runs; yields the version that answers it."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or not self._updating)
            if self._failure:
                raise EngineError(self._failure)
            if self._version == 0:
                raise EngineError("vLLM has no weights of the trainer yet")
            self._in_progress += 1
            version = self._version
        try:
            yield version
        finally:
            with self._changed:
                self._in_progress -= 1
                self._changed.notify_all()

    @contextmanager
    def _hold_requests(self) -> Iterator[None]:
        """Wait for the requests in progress; new ones wait until the block ends."""
        with self._changed:
            self._updating = True
            drained = self._changed.wait_for(lambda: self._failure or not self._in_progress, self._server.limit_s)
            if self._failure or not drained:
                raise EngineError(self._failure or f"requests have not ended within {self._server.limit_s:.0f} s")
        yield
        with self._changed:
            self._updating = False
            self._changed.notify_all()

    def _fail(self, reason: str) -> None:
        with self._changed:
            self._failure = self._failure or reason
            self._changed.notify_all()

    def _load(self, written: WrittenWeights) -> None:
        """Make the server load the weights, and check that it answers with them.

        It is paused meanwhile, because requests of others (the engine watch) would keep blocks of the prefix cache.
        """
        post, limit_s = self._connections.post, self._server.limit_s
        post("/pause?mode=wait", {}, limit_s)
        call = {"method": "load_handover", "kwargs": {"folder": str(written.folder), "version": written.version}}
        _check_workers(post("/collective_rpc", call, limit_s), written)
        post("/reset_prefix_cache", {}, limit_s)
        post("/update_weight_version", {"new_version": str(written.version)}, limit_s)
        post("/resume", {}, limit_s)
        tokens = self._canary.tokens
        body = {**_PLAIN_SAMPLING, "model": self._server.model, "prompt": tokens, "max_tokens": 1, "temperature": 0}
        answer = post("/v1/completions", body | {"prompt_logprobs": 0, "return_tokens_as_token_ids": True}, limit_s)
        if wrong := self._canary.judge(_read_prompt_logprobs(answer, tokens)):
            raise EngineError(f"it loaded them, but {wrong}")


def _fill_rows(weights: Mapping[str, Tensor], rows: int) -> dict[str, Tensor]:
    """The weights with `rows` rows where a weight has one for each token; those of no token are 0."""
    return {
        name: pad(weight, (0, 0, 0, rows - len(weight))) if name in VOCAB_ROWS and len(weight) < rows else weight
        for name, weight in weights.items()
    }


def _check_workers(answer: Any, written: WrittenWeights) -> None:
    """Every worker must hold this version, of this file."""
    results = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(results, list) or not results:
        raise EngineError("no worker has answered")
    for worker, result in enumerate(results):
        if not isinstance(result, dict) or result.get("error"):
            raise EngineError(f"worker {worker}: {result.get('error') if isinstance(result, dict) else result}")
        if (result.get("version"), result.get("sha256")) != (written.version, written.sha256):
            raise EngineError(f"worker {worker} holds version {result.get('version')}, {result.get('sha256')}")


def _read_generation(answer: Any, request: GenerationRequest, version: int) -> Generation:
    """The answer of /v1/completions. Raises EngineError if it has another form than vLLM's."""
    try:
        choice = answer["choices"][0]
        tokens, logprobs = tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"])
        stopped = choice["finish_reason"] == "stop"
    except (KeyError, IndexError, TypeError) as error:
        raise EngineError(f"vLLM's answer has no tokens with log-probabilities: {str(answer)[:300]}") from error
    proper = all(type(token) is int for token in tokens) and all(
        type(logprob) is float and math.isfinite(logprob) for logprob in logprobs
    )
    if not proper or not tokens or len(tokens) != len(logprobs) or choice["finish_reason"] not in ("stop", "length"):
        raise EngineError(f"vLLM's answer is not {request.max_new_tokens} or fewer tokens: {str(answer)[:300]}")
    finish: Any = "stop" if stopped else "length" if len(tokens) == request.max_new_tokens else "context"
    return Generation(tokens, logprobs, finish, version)


def _read_prompt_logprobs(answer: Any, tokens: tuple[int, ...]) -> tuple[float, ...]:
    """The log-probability of each token after the first."""
    try:
        listed = answer["choices"][0]["prompt_logprobs"][1:]
        return tuple(float(at[str(token)]["logprob"]) for at, token in zip(listed, tokens[1:], strict=True))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise EngineError(f"vLLM's answer has no log-probabilities of the prompt: {str(answer)[:300]}") from error
