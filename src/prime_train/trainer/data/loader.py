"""Builds packed buffers ahead, in the trainer or in processes of its own. Never decides which documents."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import multiprocessing
import multiprocessing.process
import os
import random
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from prime_train.errors import UserError
from prime_train.trainer.data import order
from prime_train.trainer.data.batch import Rows
from prime_train.trainer.data.corpus import Corpus
from prime_train.trainer.data.order import BufferPlan, DocumentOrder
from prime_train.trainer.data.packing import fill, pack

BUFFERS_AHEAD = 2  # per worker
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


class Buffers(Dataset[Buffer | Fault]):
    """Builds the buffer of a plan."""

    def __init__(self, corpora: tuple[Corpus, ...], seed: int, ctx_tokens: int, padding: int) -> None:
        self.corpora = corpora
        self.seed = seed
        self.ctx_tokens = ctx_tokens
        self.padding = padding

    def __getitem__(self, plan: BufferPlan) -> Buffer | Fault:
        try:
            return self.build(plan)
        except UserError as error:
            return Fault(asdict(error))

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
    """The buffers in the order of their plans, whatever the number of workers; 0 = build them here."""

    def __init__(self, buffers: Buffers, planned: Iterator[BufferPlan], workers: int) -> None:
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._owner_pid = os.getpid()
        if workers == 0:
            self._built: Iterator[Buffer | Fault] = map(buffers.__getitem__, planned)
            return
        before = set(multiprocessing.active_children())
        self._built = iter(_data_loader(buffers, planned, workers))
        self._processes = [process for process in multiprocessing.active_children() if process not in before]
        # At exit this comes before the hooks of DataLoader and multiprocessing, which wait for workers that nobody
        # has told to end: an exception keeps the iterator alive through its traceback.
        atexit.register(self.close)

    def __next__(self) -> Buffer:
        built = next(self._built)
        if isinstance(built, Fault):
            raise UserError(**built.parts)
        return built

    def close(self) -> None:
        """Ends the workers, also one that does not listen. May be called again."""
        processes, self._processes = self._processes, []
        if not processes or os.getpid() != self._owner_pid:
            return
        atexit.unregister(self.close)
        cast(Any, self._built)._shutdown_workers()  # what the end of its life would do, which may be too late
        for process in processes:
            if process.is_alive():
                process.kill()


def _data_loader(buffers: Buffers, planned: Iterator[BufferPlan], workers: int) -> DataLoader[Buffer | Fault]:
    """Forks the workers: they share the opened corpora, and start in milliseconds.

    Rows travel through a pipe and not through /dev/shm, which is 64 MB in a default container.
    """
    return DataLoader(
        buffers,
        batch_size=None,
        sampler=planned,
        num_workers=workers,
        collate_fn=_as_it_is,
        prefetch_factor=BUFFERS_AHEAD,
        multiprocessing_context="fork",
        worker_init_fn=partial(_start_worker, os.getpid(), buffers.seed),
        generator=torch.Generator().manual_seed(buffers.seed),  # or it would draw from the model's random numbers
    )


def _as_it_is(built: Any) -> Any:
    """Instead of the default, which would turn arrays into tensors in shared memory."""
    return built


def _start_worker(trainer_pid: int, seed: int, worker: int) -> None:
    """Ties the process to the trainer and seeds all that draws random numbers in it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != trainer_pid:
        os._exit(1)
    # A signal to the whole group asks the trainer to save, and it may need data until then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads did not come along through the fork
    random.seed(f"{seed} {worker}")
    np.random.seed(int(np.random.SeedSequence([seed, worker]).generate_state(1)[0]))
    torch.manual_seed(seed + worker)
