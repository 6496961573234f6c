"""The local engine's CUDA stream, with stand-ins for streams: its weights are never torn."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from prime_train.trainer.rl.engines import local_engine
from prime_train.trainer.rl.engines.cached_decoder import CachedDecoder
from prime_train.trainer.rl.engines.engine import Generation, GenerationRequest
from prime_train.trainer.rl.engines.local_engine import EngineStream, LocalEngine
from tests.unit.trainer import tiny
from tests.unit.trainer.families import loud

_ordering = threading.Lock()


@dataclass(eq=False)
class Work:
    """Kernels that were started together, and the work that a GPU ends before it begins them."""

    kind: Literal["read", "write"]
    decoder: object
    stream: FakeStream
    after: set[Work]


@dataclass(eq=False)
class FakeStream:
    """Orders its own work, and nothing else unless `wait_stream` is called."""

    device: torch.device
    priority: int = 0
    last: set[Work] = field(default_factory=set)  # with all that it follows
    synchronized: bool = False

    def wait_stream(self, other: FakeStream) -> None:
        with _ordering:
            self.last = self.last | other.last

    def synchronize(self) -> None:
        self.synchronized = True


class FakeCuda:
    """The parts of torch.cuda that the engine uses."""

    def __init__(self) -> None:
        self.default = FakeStream(torch.device("cuda"))
        self.streams: list[FakeStream] = []
        self.work: list[Work] = []
        self._local = threading.local()

    def open_stream(self, device: torch.device, priority: int) -> FakeStream:
        self.streams.append(FakeStream(device, priority))
        return self.streams[-1]

    def current_stream(self, _device: object = None) -> FakeStream:
        found: FakeStream = getattr(self._local, "stream", self.default)
        return found

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self._local.stream = stream
        yield
        del self._local.stream

    def start(self, kind: Literal["read", "write"], decoder: object) -> None:
        stream = self.current_stream()
        with _ordering:
            work = Work(kind, decoder, stream, set(stream.last))
            stream.last = stream.last | {work}
            self.work.append(work)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """An engine that is opened for a GPU computes on the CPU, and notes what it starts on which stream."""
    fake = FakeCuda()
    monkeypatch.setattr(torch.cuda, "Stream", fake.open_stream)
    monkeypatch.setattr(torch.cuda, "current_stream", fake.current_stream)
    monkeypatch.setattr(torch.cuda, "stream", fake.stream)

    class NotedDecoder(CachedDecoder):
        def __init__(self, *args: Any, device: object, dtype: torch.dtype) -> None:  # noqa: ARG002 - it computes on the CPU
            super().__init__(*args, device="cpu", dtype=dtype)

        def load(self, weights: Mapping[str, Tensor]) -> None:
            fake.start("write", self)
            super().load(weights)

        def prefill(self, *args: Any) -> Tensor:
            fake.start("read", self)
            return super().prefill(*args)

        def decode(self, *args: Any) -> Tensor:
            fake.start("read", self)
            return super().decode(*args)

    monkeypatch.setattr(local_engine, "CachedDecoder", NotedDecoder)
    return fake


def request(seed: int) -> GenerationRequest:
    return GenerationRequest((1, 2, seed), 20, 1.0, frozenset(), seed)


def generate_during_updates(versions: int) -> list[Generation]:
    """Answers by an engine that gets the weights of the models with the seeds 1, 2, ... while it generates."""
    opened = LocalEngine(tiny.CONFIG, ctx_tokens=30, slots=4, device="cuda")
    try:
        opened.update(loud(tiny.CONFIG, 1).state_dict(), 1)
        with ThreadPoolExecutor(6) as pool:
            futures = [pool.submit(opened.generate, request(seed)) for seed in range(24)]
            for version in range(2, versions + 1):
                futures[4 * version - 8].result()
                opened.update(loud(tiny.CONFIG, version).state_dict(), version)
            return [future.result() for future in futures]
    finally:
        opened.close()


def find_unordered(cuda: FakeCuda) -> list[tuple[Work, Work]]:
    """Pairs of a write and other work with the same weights that a GPU may do at the same time."""
    return [
        (one, other)
        for one, other in combinations(cuda.work, 2)
        if one.decoder is other.decoder and "write" in (one.kind, other.kind)
        if one not in other.after and other not in one.after
    ]


def test_no_weights_are_written_while_they_are_read(cuda: FakeCuda) -> None:
    answers = generate_during_updates(5)
    assert find_unordered(cuda) == []
    (own,) = cuda.streams
    assert own.priority < 0
    assert own.synchronized
    assert {(work.kind, work.stream is own) for work in cuda.work} == {("read", True), ("write", False)}
    for seed, answer in enumerate(answers):
        assert answer == _answer_on_a_cpu(answer.version, request(seed))


def _answer_on_a_cpu(version: int, asked: GenerationRequest) -> Generation:
    opened = LocalEngine(tiny.CONFIG, ctx_tokens=30, slots=1)
    try:
        opened.update(loud(tiny.CONFIG, version).state_dict(), version)
        return opened.generate(asked)
    finally:
        opened.close()


def test_weights_that_are_handed_over_without_order_are_found(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineStream, "order", lambda _stream: nullcontext())
    generate_during_updates(3)
    assert find_unordered(cuda)
