"""Starts the processes that make samples, and gives each a part of every batch. Knows no order of batches."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.python_child import own_module
from prime_train.trainer.audio.log_mel import Floats
from prime_train.trainer.audio.samples import BrokenClip, SampleMaker, SampleParts
from prime_train.trainer.audio.worker_program import map_slots

# A matrix product of a sample is so small that a second thread of the library costs more than it computes.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_END_S = 10.0


class AudioWorkers:
    """`workers` processes with shared memory for `slots` batches. Close it, or use it in a `with` block."""

    def __init__(
        self, maker: SampleMaker, paths: Sequence[Path], batch: int, slots: int, workers: int, threads: int
    ) -> None:
        self.workers = workers
        mel = maker.mel
        # Not in /dev/shm, which has 64 MiB in a container by default.
        self._descriptor = os.memfd_create("prime-train-audio")
        os.ftruncate(self._descriptor, slots * batch * mel.frames * mel.mels * 4)
        self._slots = map_slots(self._descriptor, slots, batch, mel)
        given = {
            "maker": _describe_maker(maker, paths),
            "descriptor": self._descriptor,
            "slots": slots,
            "batch": batch,
            "threads": threads,
        }
        self._processes = [self._start(given) for _ in range(workers)]

    def _start(self, given: dict[str, Any]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            own_module("prime_train.trainer.audio.worker_program"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            pass_fds=[self._descriptor],
            env=os.environ | _ONE_THREAD,
            start_new_session=True,  # a Ctrl-C goes to the trainer, which needs batches until it has saved
        )
        self._send(process, given)
        return process

    def ask(self, slot: int, first: int, count: int) -> None:
        """Begin a batch: `count` samples from the place `first` on, into a slot that no other batch has."""
        for worker, process in enumerate(self._processes):
            self._send(
                process,
                {"slot": slot, "first": first, "begin": worker, "end": count, "stride": self.workers},
            )

    def take(self, slot: int) -> tuple[Floats, list[SampleParts]]:
        """The samples of the oldest batch, (count, frames, mels) and their parts. The slot may be used again.

        Waits for all workers. Raises UserError where one has ended, or where no clip can be decoded.
        """
        found: dict[int, SampleParts] = {}
        for process in self._processes:
            answer = self._receive(process)
            assert answer["slot"] == slot, "each worker answers in the order of the requests"
            for position, (row, frames, labels, broken) in answer["samples"].items():
                found[int(position)] = SampleParts(
                    row, frames, tuple(labels), tuple(BrokenClip(*one) for one in broken)
                )
        return self._slots[slot][: len(found)].copy(), [found[position] for position in range(len(found))]

    @staticmethod
    def _send(process: subprocess.Popen[str], message: dict[str, Any]) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message) + "\n")
        except BrokenPipeError:  # `take` reads why it ended
            return

    @staticmethod
    def _receive(process: subprocess.Popen[str]) -> Any:
        assert process.stdout is not None
        line = process.stdout.readline()
        answer = json.loads(line) if line else {"error": _describe_end(process)}
        if "error" in answer:
            parts = answer["error"]
            raise UserError(**parts | {"exit_code": ExitCode(parts["exit_code"])})
        return answer

    def close(self) -> None:
        """End every worker. May be called twice."""
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):  # a request that a dead worker never read
                        pipe.close()
        for process in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = []
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _describe_maker(maker: SampleMaker, paths: Sequence[Path]) -> dict[str, Any]:
    """What `build_maker` builds an equal one from, JSON-able."""
    return {
        "paths": list(map(str, paths)),
        "identity": maker.table.identity,
        "columns": asdict(maker.columns),
        "seed": maker.order.seed,
        "blocks": list(maker.order.blocks),
        "quotas": list(maker.order.quotas),
        "mel": asdict(maker.mel),
        "clip_s": maker.clip_s,
        "held_out": maker.held_out,
        "seek": maker.seek,
    }


def _describe_end(process: subprocess.Popen[str]) -> dict[str, Any]:
    code = process.wait(_END_S)
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    why = "the kernel ends a process when memory runs out" if code == -9 else "its traceback is in the log"
    fix = "see the log and `dmesg`; with less memory per batch: a smaller batch.micro_batch or fewer workers"
    parts = {"what": f"audio worker {process.pid} {how}", "where": "data.loader_workers", "why": why, "fix": fix}
    return parts | {"exit_code": int(ExitCode.OUT_OF_REACH)}


def make_here(maker: SampleMaker, first: int, count: int) -> tuple[Floats, list[SampleParts]]:
    """The samples of a batch, made by this thread."""
    out = np.zeros((count, maker.mel.frames, maker.mel.mels), dtype=np.float32)
    places = range(first, first + count)
    rows = maker.order.find_rows(np.arange(first, first + count)).tolist()
    return out, [maker.make(place, row, one) for place, row, one in zip(places, rows, out, strict=True)]
