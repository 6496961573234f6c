"""Generates in a thread of the trainer's process, with a KV cache and continuous batching. Starts no process.

The engine has two sets of weights. After an update the requests in progress are completed with the set that they
began with, beside the new ones, so every answer is by one version and the trainer does not wait for the slowest answer.

On a GPU the engine's kernels are on a stream of their own, so they do not wait for those of the training step. Only the
hand-over of weights orders the two streams. docs/gpu.md lists what no GPU has shown yet.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from prime_train.core.spans import Span, Spans
from prime_train.trainer.model.decoder import ModelConfig
from prime_train.trainer.rl.engines.cached_decoder import CachedDecoder
from prime_train.trainer.rl.engines.decode_batch import DecodeBatch, DecodeRow
from prime_train.trainer.rl.engines.engine import EngineError, Generation, GenerationRequest, PromptTooLongError
from prime_train.trainer.rl.engines.exact_rows import WIDE

LANE = "engine"  # of the spans of whole steps
_READ_STEPS = 8  # on a GPU; between two reads the host starts kernels ahead, and a row wastes half of them at its end


class EngineStream:
    """The CUDA stream of the engine's thread. On a CPU there is none, because the host waits for every operation."""

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            # The blocks of a kernel of higher priority go first: else each of the many small kernels of a token waits
            # until a large one of the training step ends. Source: CUDA C programming guide, stream priorities.
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    @contextmanager
    def use(self) -> Iterator[None]:
        """Run the kernels of this thread on the stream, and wait for them at the end."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            try:
                yield
            finally:
                self._stream.synchronize()  # the memory that they use may be freed

    @contextmanager
    def order(self) -> Iterator[None]:
        """Run the kernels of this thread after the engine's that were started before, and before its later ones.

        The memory that both use belongs to the caller's stream, so the allocator has nothing to record.
        """
        if self._stream is None:
            yield
            return
        calling = torch.cuda.current_stream(self._stream.device)
        calling.wait_stream(self._stream)
        yield
        self._stream.wait_stream(calling)


class LocalEngine:
    """An `Engine`.

    In fp32 on a CPU with AVX2, an answer is the same to the last bit, whatever requests are beside it
    (`exact_rows.py`). Elsewhere a matrix product may round a row differently in a batch of another size.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        ctx_tokens: int,
        slots: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        spans: Spans | None = None,
    ) -> None:
        """`slots`: requests that are generated together; others wait."""
        self._stream = EngineStream(torch.device(device))
        read_steps = 1 if torch.device(device).type == "cpu" else _READ_STEPS
        self._ctx_tokens = ctx_tokens
        self._slots = slots
        self._vocab_size = config.vocab_size
        self._spans = spans or Spans(LANE)
        cached = ctx_tokens + read_steps - 1  # rows generate beyond their end until the host has read their tokens
        decoders = [CachedDecoder(config, slots, cached, device=device, dtype=dtype) for _ in range(2)]
        self._current, self._former = (DecodeBatch(decoder, read_steps) for decoder in decoders)
        self._waiting: deque[DecodeRow] = deque()
        self._failure: str | None = None  # why the engine answers nothing more
        self._changed = threading.Condition()  # guards everything above
        self._updating = threading.Lock()
        self._started = threading.Event()
        self._limits_threads = torch.device(device).type == "cpu" and config.hidden_size < WIDE
        self._thread = threading.Thread(target=self._run, name="local-engine", daemon=True)
        self._start()

    @property
    def version(self) -> int:
        return self._current.version

    @property
    def ctx_tokens(self) -> int:
        return self._ctx_tokens

    def generate(self, request: GenerationRequest) -> Generation:
        room = self._ctx_tokens - len(request.prompt)
        if room < 1:
            raise PromptTooLongError(f"{len(request.prompt)} tokens, and the context has {self._ctx_tokens}")
        if not request.prompt or request.max_new_tokens < 1:
            raise ValueError("a request needs a prompt and at least one token to generate")
        if not 0 <= min(request.prompt) <= max(request.prompt) < self._vocab_size:
            raise ValueError(f"a token of the prompt is outside the vocabulary of {self._vocab_size}")
        row = DecodeRow(request, time.monotonic(), min(room, request.max_new_tokens))
        with self._changed:
            self._check_running()
            if self.version == 0:
                raise EngineError("the local engine has no weights yet")
            self._waiting.append(row)
            self._changed.notify_all()
        return row.answer.result()

    def update(self, weights: Mapping[str, Tensor], version: int) -> None:
        with self._updating:
            with self._changed:
                self._changed.wait_for(lambda: self._failure is not None or not self._former.rows)
                self._check_running()
            try:
                with self._stream.order():
                    self._former.decoder.load(weights)  # the thread uses no batch without rows
            except ValueError as error:
                raise EngineError(f"the weights of version {version} do not fit the local engine: {error}") from error
            with self._changed:
                self._former.version = version
                self._current, self._former = self._former, self._current

    def close(self) -> None:
        with self._changed:
            self._failure = self._failure or "the local engine is closed"
            self._changed.notify_all()
        self._thread.join()
        self._spans.flush()

    def _start(self) -> None:
        """Start the thread; in a small model it computes alone.

        With the threads of the trainer there are more OpenMP threads than cores. Then libgomp puts them to sleep
        between two operations, and waking them takes 40 us for each (measured; a small product takes 20 us).
        """
        threads = torch.get_num_threads()
        self._thread.start()
        self._started.wait()
        torch.set_num_threads(threads)  # which are also those of threads that start later

    def _check_running(self) -> None:
        if self._failure is not None:
            raise EngineError(self._failure)

    @torch.inference_mode()
    def _run(self) -> None:
        if self._limits_threads:
            torch.get_num_threads()  # the first call in a thread sets their number
            torch.set_num_threads(1)
        self._started.set()
        try:
            with self._stream.use():
                while batches := self._await_work():
                    for batch in batches:
                        self._step(batch)
        except Exception as error:  # of every kind, because the callers would wait for ever if the thread just ended
            with self._changed:
                self._failure = f"the local engine failed: {type(error).__name__}: {error}"
        with self._changed:
            rows: list[DecodeRow] = [*self._waiting, *self._current.rows, *self._former.rows]
            self._waiting.clear()
            self._former.rows.clear()
            self._current.rows.clear()
            self._changed.notify_all()
        for row in rows:
            row.answer.set_exception(EngineError(self._failure))

    def _await_work(self) -> list[DecodeBatch]:
        """Wait for requests and admit them to free slots; returns the batches with rows, none after `close`."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure is not None or self._waiting or self._current.rows or self._former.rows
            )
            if self._failure is not None:
                return []
            admitted_s = time.monotonic()
            while self._waiting and len(self._current.rows) + len(self._former.rows) < self._slots:
                row = self._waiting.popleft()
                row.admitted_s = admitted_s
                self._current.add(row)
            return [batch for batch in (self._current, self._former) if batch.rows]

    def _step(self, batch: DecodeBatch) -> None:
        start_s = time.monotonic()
        step = batch.step()
        end_s = time.monotonic()
        if self._spans.on:
            self._spans.add(Span(step.kind, LANE, start_s, end_s, 0, step.tokens))
            self._add_request_spans(step.finished, end_s)
        if step.finished:
            with self._changed:
                self._changed.notify_all()  # an update may wait until the batch is empty
        for row in step.finished:
            row.answer.set_result(row.generation)

    def _add_request_spans(self, rows: Sequence[DecodeRow], end_s: float) -> None:
        for row in rows:
            lane, prompt = row.request.lane or f"request-{row.request.seed}", len(row.request.prompt)
            self._spans.add(Span("queue", lane, row.submitted_s, row.admitted_s))
            self._spans.add(Span("prefill", lane, row.admitted_s, row.prefilled_s, 0, prompt))
            self._spans.add(Span("decode", lane, row.prefilled_s, end_s, 0, len(row.tokens)))
