"""Builds packed buffers in advance, in the trainer or in worker processes. Never chooses documents."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess

import numpy as np
import torch

from prime_train.core.errors import UserError
from prime_train.core.spans import Spans
from prime_train.trainer import seed
from prime_train.trainer.data import order
from prime_train.trainer.data.batch import Rows, fill, pack
from prime_train.trainer.data.corpus import Corpus
from prime_train.trainer.data.order import BufferPlan, DocumentOrder

PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class Buffer:
    """The shuffled sequences of one buffer of documents. `cursors` are the positions before it."""

    number: int
    cursors: tuple[int, ...]
    rows: Rows


@dataclass(frozen=True, slots=True)
class Buffers:
    """Builds the buffer of a plan."""

    corpora: tuple[Corpus, ...]
    seed: int
    ctx_tokens: int
    padding: int

    def build(self, plan: BufferPlan) -> Buffer:
        parts = [
            corpus.gather(corpus.train[plan.document[plan.source == number]])
            for number, corpus in enumerate(self.corpora)
            if (plan.source == number).any()
        ]
        tokens = np.concatenate([tokens for tokens, _ in parts])
        lengths = np.concatenate([lengths for _, lengths in parts])
        rows = fill(pack(lengths, self.ctx_tokens), tokens, lengths, self.ctx_tokens, self.padding)
        shuffled = order.generator(self.seed, order.ROWS, plan.number).permutation(len(rows))
        return Buffer(plan.number, plan.cursors, rows.take(shuffled))


def plans(documents: DocumentOrder, number: int, cursors: tuple[int, ...]) -> Iterator[BufferPlan]:
    """The endless plans from buffer `number` on."""
    for following in itertools.count(number):
        plan = documents.plan_buffer(following, cursors)
        cursors = documents.next_cursors(plan)
        yield plan


class Loader:
    """Yields the buffers in the order of their plans, for any number of workers; 0 = build them in this process.

    Worker w of W builds every W-th buffer from the w-th on, and waits with the next buffer until the pipe accepts it.
    Each worker has its own pipe and shares no lock, so a killed worker cannot block the others or the trainer;
    torch's DataLoader can hang in the lock of its shared event or queue. Rows also do not use /dev/shm, which has
    only 64 MB in a default container.
    """

    def __init__(self, buffers: Buffers, make_plans: Callable[[], Iterator[BufferPlan]], workers: int) -> None:
        self._owner_pid = os.getpid()
        self._processes: list[ForkProcess] = []
        self._pipes: list[Connection] = []
        self._here = map(buffers.build, make_plans()) if workers == 0 else None
        self._taken = 0
        # Workers block these signals: the trainer saves after a signal to the whole group, and may need data for it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            for worker in range(workers):
                self._start(buffers, islice(make_plans(), worker, None, workers), worker)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        # Runs before the hook of multiprocessing, which sends SIGTERM and waits.
        atexit.register(self.close)

    def _start(self, buffers: Buffers, own_plans: Iterator[BufferPlan], worker: int) -> None:
        """Fork a worker, which shares the opened corpora and starts in milliseconds."""
        context = multiprocessing.get_context("fork")
        receiving, sending = context.Pipe(duplex=False)
        arguments = (os.getpid(), buffers, own_plans, sending, worker)
        process = context.Process(target=_run_worker, args=arguments, name=f"data-{worker}", daemon=True)
        process.start()
        sending.close()  # only the worker keeps its end open, so that its death closes the pipe
        self._processes.append(process)
        self._pipes.append(receiving)

    def __next__(self) -> Buffer:
        if self._here is not None:
            return next(self._here)
        worker = self._taken % len(self._pipes)
        try:
            built = self._pipes[worker].recv()
        except (EOFError, OSError) as error:  # OSError where it died in the middle of a message
            self._processes[worker].join()
            exit_code = self._processes[worker].exitcode
            raise RuntimeError(f"data worker {worker} ended with exit code {exit_code}") from error
        if isinstance(built, dict):
            raise UserError(**built)
        assert isinstance(built, Buffer)
        self._taken += 1
        return built

    def close(self) -> None:
        """Kill the workers, which have nothing to save. May be called again."""
        if os.getpid() != self._owner_pid:
            return
        atexit.unregister(self.close)
        for process in self._processes:
            process.kill()
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.join()
            pipe.close()
        self._processes, self._pipes = [], []


def _run_worker(
    trainer_pid: int, buffers: Buffers, own_plans: Iterator[BufferPlan], pipe: Connection, worker: int
) -> None:
    """Build and send buffers until the trainer is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != trainer_pid:
        return
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a fork does not copy its threads
    torch.set_num_threads(1)  # nor those of torch
    seed.seed_all(seed.mix(buffers.seed, "worker", worker))
    spans = Spans(f"loader-{worker}")
    try:
        for plan in own_plans:
            with spans.span("data"):
                built = buffers.build(plan)
            spans.flush()  # this process is killed in the end
            pipe.send(built)
    except UserError as error:
        pipe.send(asdict(error))  # raised here, it would only give a RuntimeError in the trainer
    except BrokenPipeError:
        return
