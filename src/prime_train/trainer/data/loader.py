"""Plans the rows of buffers in advance, in the trainer or in worker processes. Never chooses documents."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from queue import Queue
from typing import Any

import numpy as np
import torch

from prime_train.core.errors import UserError
from prime_train.core.spans import Spans
from prime_train.trainer import draws, seed
from prime_train.trainer.data.corpus import Corpus, Integers, Tokens
from prime_train.trainer.data.order import BufferPlan, DocumentOrder
from prime_train.trainer.data.packing import Bins, Rows, lay_out, pack
from prime_train.trainer.data.tokenised import ALONE, NOTHING, Made, Share, sum_made
from prime_train.trainer.data.transforms import Transforms

PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class Buffer:
    """The shuffled rows of one buffer of documents, without their tokens. `cursors` are the positions before it."""

    number: int
    cursors: tuple[int, ...]
    source: Integers  # (D,) of each document
    document: Integers  # (D,) in its source
    bins: Bins  # one for each row
    tokens: tuple[int, ...] = ()  # of each source before it; empty where the sources are drawn by documents

    def __len__(self) -> int:
        return len(self.bins)

    def sums_after(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(cursors, tokens) after it."""
        documents = np.bincount(self.source, minlength=len(self.cursors))
        pieces = self.source[self.bins.document]
        tokens = np.bincount(pieces, weights=self.bins.length, minlength=len(self.tokens)).astype(np.int64)
        return _add(self.cursors, documents), _add(self.tokens, tokens) if self.tokens else ()


def _add(before: tuple[int, ...], more: Integers) -> tuple[int, ...]:
    return tuple(count + added for count, added in zip(before, more.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Buffers:
    """Packs the buffer of a plan, and reads the tokens of some of its rows."""

    corpora: tuple[Corpus, ...]
    seed: int
    ctx_tokens: int
    padding: int
    transforms: Transforms = ()  # of the documents in `corpora`

    @property
    def transform_names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.transforms)

    def change(self, transforms: Transforms) -> Buffers:
        """The same for documents after transformations."""
        return replace(self, corpora=tuple(one.change(transforms) for one in self.corpora), transforms=transforms)

    def make_own(self, plan: BufferPlan, share: Share) -> None:
        """Tokenise this process's share of the documents of a buffer."""
        for _, corpus, documents in self._by_source(plan):
            corpus.source.make_own(documents, share.at(plan.number))

    def pack(self, plan: BufferPlan, share: Share = ALONE) -> Buffer:
        """Pack the documents of a buffer by their lengths. The same plan gives the same rows in every process."""
        # The documents are packed by source, each source in the order of its permutation.
        parts = list(self._by_source(plan))
        self.make_own(plan, share)  # of every source, before the wait for other processes
        source = np.repeat([number for number, _, _ in parts], [len(documents) for _, _, documents in parts])
        document = np.concatenate([documents for _, _, documents in parts])
        lengths = [corpus.source.lengths(documents, share.at(plan.number)) for _, corpus, documents in parts]
        bins = pack(np.concatenate(lengths), self.ctx_tokens)
        shuffled = draws.generator(self.seed, draws.ROWS, plan.number).permutation(len(bins))
        return Buffer(plan.number, plan.cursors, source, document, bins.take(shuffled), plan.tokens)

    def read(self, buffer: Buffer, start: int, stop: int) -> Rows:
        """Rows [start, stop) of a buffer with their tokens."""
        bins = buffer.bins.slice(start, stop)
        source, document = buffer.source[bins.document], buffer.document[bins.document]  # (P,)
        pieces: list[Tokens] = [np.empty(0, dtype=np.uint16)] * len(document)
        for number in np.unique(source).tolist():
            mine = np.flatnonzero(source == number)
            found = self.corpora[number].source.pieces(document[mine], bins.start[mine], bins.length[mine])
            for place, piece in zip(mine.tolist(), found, strict=True):
                pieces[place] = piece
        return lay_out(bins, pieces, self.ctx_tokens, self.padding, np.dtype(np.int64))

    def made(self) -> Made:
        """What this process has tokenised."""
        return sum_made([corpus.source.made for corpus in self.corpora])

    def _by_source(self, plan: BufferPlan) -> Iterator[tuple[int, Corpus, Integers]]:
        """(number, corpus, documents) of each source with documents in the buffer."""
        for number, corpus in enumerate(self.corpora):
            mine = plan.source == number
            if mine.any():
                yield number, corpus, corpus.train[plan.document[mine]]


def plans(
    documents: DocumentOrder,
    number: int,
    cursors: tuple[int, ...],
    _share: Share = ALONE,  # no tokens are needed to draw documents
) -> Iterator[BufferPlan]:
    """The endless plans from buffer `number` on."""
    for following in itertools.count(number):
        plan = documents.plan_buffer(following, cursors)
        cursors = documents.next_cursors(plan)
        yield plan


MakePlans = Callable[[Share], Iterator[BufferPlan]]  # plans may tokenise this process's share
Message = tuple[Buffer, Made] | dict[str, Any]  # a packed buffer, or the parts of a UserError
TAKEN = b"taken"  # the answer of the trainer to a buffer


class Loader:
    """Yields the buffers in the order of their plans, for any number of workers; 0 = pack them in this process.

    Every worker tokenises its share of every buffer, and worker w of W packs every W-th one, until three wait for the
    trainer. The trainer confirms each, because a pipe would hold dozens, and the death of the worker would be seen as
    many later. Each worker has its own pipe, and shares only the locks of the cache, which end with their process: a
    killed worker cannot block the others or the trainer.
    """

    def __init__(self, buffers: Buffers, make_plans: MakePlans, workers: int, share: Share = ALONE) -> None:
        self._owner_pid = os.getpid()
        self._buffers, self._share = buffers, share
        self._made_before = NOTHING  # by workers that are replaced
        self._start(make_plans, workers)

    def restart(self, make_plans: MakePlans, workers: int, buffers: Buffers) -> None:
        """Go on with other workers, plans or corpora. What the former ones have tokenised stays in the cache."""
        self._made_before = self.made()
        self._buffers = buffers
        self.close()
        self._start(make_plans, workers)

    @property
    def workers(self) -> int:
        return len(self._processes)

    def made(self) -> Made:
        """What the workers had tokenised when they packed the buffers that were taken."""
        return sum_made([self._made_before, *self._made])

    def _start(self, make_plans: MakePlans, workers: int) -> None:
        buffers, share = self._buffers, self._share
        self._processes: list[ForkProcess] = []
        self._pipes: list[Connection] = []
        self._made = [NOTHING] * workers
        self._here = map(partial(buffers.pack, share=share), make_plans(share)) if workers == 0 else None
        self._taken = 0
        # Workers block these signals: the trainer saves after a signal to the whole group, and may need data for it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            for worker in range(workers):
                self._fork(buffers, make_plans, WorkerPart(worker, workers, share))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        # Runs before the hook of multiprocessing, which sends SIGTERM and waits.
        atexit.register(self.close)

    def _fork(self, buffers: Buffers, make_plans: MakePlans, part: WorkerPart) -> None:
        """Fork a worker, which shares the opened corpora and starts in milliseconds."""
        context = multiprocessing.get_context("fork")
        ours, of_worker = context.Pipe()
        arguments = (os.getpid(), buffers, make_plans, of_worker, part)
        process = context.Process(target=_run_worker, args=arguments, name=f"data-{part.worker}", daemon=True)
        process.start()
        of_worker.close()  # only the worker keeps its end open, so that its death closes the pipe
        self._processes.append(process)
        self._pipes.append(ours)

    def __next__(self) -> Buffer:
        if self._here is not None:
            return next(self._here)
        # The workers pack in turns, so the order of the buffers does not depend on which of them is faster.
        worker = self._taken % len(self._pipes)
        try:
            built = self._pipes[worker].recv()
        except (EOFError, OSError) as error:  # OSError where it died in the middle of a message
            self._processes[worker].join()
            exit_code = self._processes[worker].exitcode
            raise RuntimeError(f"data worker {worker} ended with exit code {exit_code}") from error
        if isinstance(built, dict):
            raise UserError(**built)
        with contextlib.suppress(OSError):  # it died after this buffer: the next call raises
            self._pipes[worker].send_bytes(TAKEN)
        buffer, self._made[worker] = built
        assert isinstance(buffer, Buffer)
        self._taken += 1
        return buffer

    def close(self) -> None:
        """Kill the workers, which have nothing to save. May be called again."""
        # A forked worker has a copy of this loader, and must not end the others.
        if os.getpid() != self._owner_pid:
            return
        atexit.unregister(self.close)
        for process in self._processes:
            process.kill()
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.join()
            pipe.close()
        self._processes, self._pipes = [], []


@dataclass(frozen=True, slots=True)
class WorkerPart:
    """The part of one worker of a trainer, which shares the work of a machine as `share`."""

    worker: int
    workers: int
    share: Share


def _run_worker(trainer_pid: int, buffers: Buffers, make_plans: MakePlans, pipe: Connection, part: WorkerPart) -> None:
    """Tokenise, pack and send buffers until the trainer is gone."""
    # A trainer that is killed cannot end its workers, so the kernel does.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before the kernel was asked.
    if os.getppid() != trainer_pid:
        return
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a fork does not copy its threads
    torch.set_num_threads(1)  # nor those of torch
    seed.seed_all(seed.mix(buffers.seed, "worker", part.worker))
    spans = Spans(f"loader-{part.worker}")
    # Its part among the workers of all trainers of the machine.
    share = Share(part.share.number * part.workers + part.worker, part.share.of * part.workers)
    before = buffers.made()  # by the trainer, before the fork
    packed: Queue[Message | None] = Queue(maxsize=1)
    sender = threading.Thread(target=_send, args=(packed, pipe), daemon=True)
    sender.start()
    try:
        for number, plan in enumerate(make_plans(share)):
            with spans.span("data"):
                if number % part.workers == part.worker:
                    built = buffers.pack(plan, share)
                else:
                    buffers.make_own(plan, share)
            spans.flush()  # this process is killed in the end
            if number % part.workers == part.worker:
                packed.put((built, buffers.made().since(before)))
    except UserError as error:
        packed.put(error.parts())  # raised here, it would only give a RuntimeError in the trainer
    packed.put(None)
    sender.join()


def _send(packed: Queue[Message | None], pipe: Connection) -> None:
    """Send what is packed, one after the other is taken, so that the worker works on while the trainer trains."""
    while (built := packed.get()) is not None:
        try:
            pipe.send(built)
            if isinstance(built, tuple):
                # Without the answer the worker would run ahead by as many buffers as the pipe holds.
                pipe.recv_bytes(len(TAKEN))
        except (EOFError, OSError):  # the trainer is gone
            os._exit(0)
