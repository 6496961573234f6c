"""Builds packed buffers ahead, in the trainer or in processes of its own. Never decides which documents."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any

import numpy as np
import torch

from prime_train.errors import UserError
from prime_train.trainer import seed
from prime_train.trainer.data import order
from prime_train.trainer.data.batch import Rows
from prime_train.trainer.data.corpus import Corpus
from prime_train.trainer.data.order import BufferPlan, DocumentOrder
from prime_train.trainer.data.packing import fill, pack

PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class Buffer:
    """The sequences of one buffer of documents, shuffled. `cursors` are those before it."""

    number: int
    cursors: tuple[int, ...]
    rows: Rows


@dataclass(frozen=True, slots=True)
class Fault:
    """A UserError on its way out of a worker: as an exception it would come out as a RuntimeError."""

    parts: dict[str, Any]


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
    """The plans from this buffer on, without end."""
    for following in itertools.count(number):
        plan = documents.buffer(following, cursors)
        cursors = documents.after(plan)
        yield plan


class Loader:
    """The buffers in the order of their plans, whatever the number of workers; 0 = build them here.

    Worker w of W builds every W-th buffer from the w-th on and waits, with the next one built, until the pipe takes
    it. Each has a pipe of its own and shares no lock, so that one that is killed cannot leave the others, or the
    trainer, waiting for it: torch's DataLoader can hang there, in the lock of its shared event or queue. Rows do not
    go through /dev/shm either, which is 64 MB in a default container.
    """

    def __init__(self, buffers: Buffers, planned: Callable[[], Iterator[BufferPlan]], workers: int) -> None:
        self._owner_pid = os.getpid()
        self._processes: list[ForkProcess] = []
        self._pipes: list[Connection] = []
        self._here = map(buffers.build, planned()) if workers == 0 else None
        self._taken = 0
        # Workers keep these blocked: a signal to the whole group asks the trainer to save, and it may need data then.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            for worker in range(workers):
                self._start(buffers, islice(planned(), worker, None, workers), worker)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        # Before the hook of multiprocessing, which asks with SIGTERM and waits.
        atexit.register(self.close)

    def _start(self, buffers: Buffers, planned: Iterator[BufferPlan], worker: int) -> None:
        """Forks a worker: it shares the opened corpora, and starts in milliseconds."""
        context = multiprocessing.get_context("fork")
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(
            target=_work, args=(os.getpid(), buffers, planned, sending, worker), name=f"data-{worker}", daemon=True
        )
        process.start()
        sending.close()  # the worker's is the only one, so that its death ends the pipe
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
        if isinstance(built, Fault):
            raise UserError(**built.parts)
        assert isinstance(built, Buffer)
        self._taken += 1
        return built

    def close(self) -> None:
        """Ends the workers at once: they have nothing to lose. May be called again."""
        if os.getpid() != self._owner_pid:
            return
        atexit.unregister(self.close)
        for process in self._processes:
            process.kill()
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.join()
            pipe.close()
        self._processes, self._pipes = [], []


def _work(
    trainer_pid: int,
    buffers: Buffers,
    planned: Iterator[BufferPlan],
    pipe: Connection,
    worker: int,
) -> None:
    """Builds and sends buffers until the trainer is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != trainer_pid:
        return
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads did not come along through the fork
    torch.set_num_threads(1)  # nor did those of torch
    seed.seed_all(seed.mix(buffers.seed, "worker", worker))
    try:
        for plan in planned:
            pipe.send(buffers.build(plan))
    except UserError as error:
        pipe.send(Fault(asdict(error)))
    except BrokenPipeError:
        return
