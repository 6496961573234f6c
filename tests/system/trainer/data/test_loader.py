from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import psutil
import pytest

from prime_train.core.errors import UserError
from prime_train.spec import RunSpec, to_json
from prime_train.trainer.data import corpus
from prime_train.trainer.data.loader import Buffer, Buffers
from prime_train.trainer.data.order import BufferPlan
from prime_train.trainer.data.stream import TrainStream, prepare
from prime_train.trainer.data.tokenised import Share
from tests.unit.trainer.data.small_runs import files, small_run, write_texts

DEADLINE_S = 30.0

TRAINER = """
    import sys, time
    from pathlib import Path
    import psutil
    from prime_train.spec import from_json
    from prime_train.trainer.data.stream import TrainStream, prepare

    run = from_json(Path(sys.argv[1]).read_text())
    stream = TrainStream(run, prepare(run), 0, 1, None)
    stream.next_micro_batch()
    print(*(child.pid for child in psutil.Process().children()), flush=True)
    if sys.argv[2] == "ends":
        raise SystemExit(7)
    if sys.argv[2] == "fails":
        caught = None
        try:
            stream.position()["no such key"]
        except KeyError as error:
            caught = error  # keeps the frame, and in it the stream, alive to the end
            raise
    time.sleep(600)
"""


@pytest.fixture
def run(tmp_path: Path) -> RunSpec:
    return small_run(files(write_texts(tmp_path / "texts", 30)), loader_workers=2)


def is_gone(pid: int) -> bool:
    """A process that has ended counts as gone before its parent has asked for its exit code."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def at_least(counter: Synchronized[int], number: int) -> bool:
    return counter.value >= number


def start_trainer(run: RunSpec, folder: Path, then: str) -> tuple[subprocess.Popen[str], list[int]]:
    (folder / "resolved.json").write_text(to_json(run))
    command = [sys.executable, "-c", textwrap.dedent(TRAINER), str(folder / "resolved.json"), then]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert trainer.stdout is not None
    workers = [int(pid) for pid in trainer.stdout.readline().split()]
    assert len(workers) == 2
    return trainer, workers


def list_workers() -> list[int]:
    """The pids of the workers of this process, without programs that other tests have left running."""
    return [worker.pid for worker in multiprocessing.active_children() if worker.pid is not None]


def take_without_end(stream: TrainStream) -> None:
    while stream.next_micro_batch():
        pass


def test_workers_die_with_a_trainer_that_is_killed(run: RunSpec, tmp_path: Path) -> None:
    trainer, workers = start_trainer(run, tmp_path, then="waits")
    trainer.kill()
    assert trainer.wait() == -signal.SIGKILL
    wait_until(lambda: all(is_gone(worker) for worker in workers))


@pytest.mark.parametrize(("then", "exit_code"), [("ends", 7), ("fails", 1)])
def test_workers_end_with_a_trainer_that_ends_without_closing_them(
    run: RunSpec, tmp_path: Path, then: str, exit_code: int
) -> None:
    trainer, workers = start_trainer(run, tmp_path, then)
    assert trainer.wait(timeout=DEADLINE_S) == exit_code
    wait_until(lambda: all(is_gone(worker) for worker in workers))


def test_a_signal_to_the_whole_group_leaves_the_workers_to_the_trainer(run: RunSpec) -> None:
    stream = TrainStream(run, prepare(run), 0, 1, None)
    stream.next_micro_batch()
    workers = list_workers()
    for worker in workers:
        os.kill(worker, signal.SIGTERM)
        os.kill(worker, signal.SIGINT)
    for _ in range(100):
        stream.next_micro_batch()
    assert not any(is_gone(worker) for worker in workers)
    stream.close()
    wait_until(lambda: all(is_gone(worker) for worker in workers))


def test_a_worker_that_dies_is_an_error_and_not_a_hang(run: RunSpec) -> None:
    stream = TrainStream(run, prepare(run), 0, 1, None)
    stream.next_micro_batch()
    os.kill(list_workers()[0], signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"data worker \d ended with exit code -9"):
        take_without_end(stream)
    stream.close()


def test_a_worker_is_three_small_buffers_ahead_and_no_more(run: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = multiprocessing.Value("i", 0)
    pack = Buffers.pack

    def count_and_pack(buffers: Buffers, plan: BufferPlan, share: Share) -> Buffer:
        packed.value += 1
        return pack(buffers, plan, share)

    monkeypatch.setattr(Buffers, "pack", count_and_pack)
    run = replace(run, data=replace(run.data, loader_workers=1))
    stream = TrainStream(run, prepare(run), 0, 1, None)
    for buffer in range(20):
        while stream.position()["buffer"] <= buffer:
            stream.next_micro_batch()
        taken = stream.position()["buffer"] + 1
        wait_until(partial(at_least, packed, taken + 3))
        assert packed.value <= taken + 4  # the last one may have been taken a moment ago
    stream.close()


def test_the_workers_count_what_they_make_and_not_what_the_trainer_made(
    run: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "WHOLE_BYTES", 0)
    tokenizer = prepare(run)
    opened = corpus.open_corpora(run, tokenizer)
    held_out = opened[0].held_out
    opened[0].gather(held_out)  # by the trainer, before it forks
    stream = TrainStream(run, tokenizer, 0, 1, None, opened)
    while stream.position()["buffer"] < 12:  # 27 training documents are 7 buffers
        stream.next_micro_batch()
    stream.close()
    assert stream.made().documents == len(opened[0].train) + len(held_out)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_fault_of_the_data_keeps_its_four_parts(run: RunSpec, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    tokenizer = prepare(run)
    monkeypatch.setattr(corpus, "WHOLE_BYTES", 0)  # read when its turn comes
    path = run.data.sources[0].path
    assert path is not None
    for file in Path(path).iterdir():
        file.write_bytes(b"\xff")
    stream = TrainStream(replace(run, data=replace(run.data, loader_workers=workers)), tokenizer, 0, 1, None)
    with pytest.raises(UserError) as caught:
        stream.next_micro_batch()
    assert caught.value.what == "byte 0 is not UTF-8"
    assert caught.value.where.endswith(".txt")
    assert caught.value.fix.startswith("convert it")
    stream.close()
