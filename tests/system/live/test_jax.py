"""Two real JAX processes: a failure ends both at once and its traceback is the first, and SIGTERM saves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.live.trainers import find_interpreter, live_environment
from tests.unit.supervise.machines.hosts import free_port

pytestmark = pytest.mark.trainers

START = """
import os, sys, time
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils
{initialize}
rank = jax.process_index()
def together():
    return float(multihost_utils.process_allgather(jnp.ones(1)).sum())
assert together() == 2.0
print("READY", flush=True)
"""
OWN = START.format(initialize="from prime_train import jax as pj, live\npj.initialize()")
UNMODIFIED = START.format(
    initialize="jax.distributed.initialize(os.environ['C'], 2, int(os.environ['RANK']))",
)
FAILS = "if rank == 1:\n    raise RuntimeError('the first fault')\nwhile True: together()\n"
TRAINS = """
for number in range(1, 100_000):
    together()
    live.step(number)
    if live.should_stop():
        print("SAVED", number, flush=True)
        break
jax.distributed.shutdown()
"""
DEAF = "while True: together()\n"


@contextmanager
def two_ranks(python: str, script: str, folder: Path, *words: str) -> Iterator[list[subprocess.Popen[str]]]:
    (folder / "train.py").write_text(script)
    port = free_port()
    ranks = []
    for rank in range(2):
        environment = live_environment(folder / "live") | {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "C": f"127.0.0.1:{port}",
            "JAX_PLATFORMS": "cpu",
        }
        ranks.append(
            subprocess.Popen(
                [python, "-u", *words, "train.py"],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=(folder / f"rank{rank}.err").open("w"),
                text=True,
            )
        )
    try:
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def await_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert any("READY" in line for line in process.stdout)


@pytest.mark.parametrize(
    ("script", "words"),
    [(OWN + FAILS, ()), (UNMODIFIED + FAILS, ("-m", "prime_train.jaxrun"))],
    ids=["own", "jaxrun"],
)
def test_a_failure_ends_both_ranks_and_its_traceback_comes_first(
    script: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    with two_ranks(find_interpreter("jax"), script, tmp_path, *words) as ranks:
        codes = [process.wait(60) for process in ranks]  # JAX alone waits for the other in its exit barrier, 300 s
    assert codes[1] == 1
    assert codes[0] != 0
    failed, other = ((tmp_path / f"rank{rank}.err") for rank in (1, 0))
    assert "RuntimeError: the first fault" in failed.read_text()
    assert failed.stat().st_mtime <= other.stat().st_mtime


def test_sigterm_saves_at_the_same_step_on_both_ranks(tmp_path: Path) -> None:
    with two_ranks(find_interpreter("jax"), OWN + TRAINS, tmp_path) as ranks:
        for process in ranks:
            await_ready(process)
        ranks[0].send_signal(signal.SIGTERM)
        said = [process.communicate(timeout=60)[0] for process in ranks]
        assert [process.returncode for process in ranks] == [0, 0]
    assert said[0].startswith("SAVED")
    assert said[0] == said[1]


def test_a_request_without_a_signal_saves_too(tmp_path: Path) -> None:
    with two_ranks(find_interpreter("jax"), OWN + TRAINS, tmp_path) as ranks:
        for process in ranks:
            await_ready(process)
        (tmp_path / "live" / "stop").touch()
        said = [process.communicate(timeout=60)[0] for process in ranks]
    assert said[0].startswith("SAVED")
    assert said[0] == said[1]
    steps = {json.loads(file.read_text().splitlines()[-1])["step"] for file in (tmp_path / "live").glob("*.jsonl")}
    assert steps == {int(said[0].split()[1])}


def test_sigterm_ends_a_script_that_never_asks(tmp_path: Path) -> None:
    with two_ranks(find_interpreter("jax"), UNMODIFIED + DEAF, tmp_path, "-m", "prime_train.jaxrun") as ranks:
        for process in ranks:
            await_ready(process)
        for process in ranks:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(60) for process in ranks]
    assert 128 + signal.SIGTERM in codes
    assert 0 not in codes


@pytest.mark.parametrize("words", [(), ("--help",), ("-m",)])
def test_bad_words_get_the_usage(words: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [find_interpreter("jax"), "-m", "prime_train.jaxrun", *words],
        env=live_environment(tmp_path) | {"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("usage: python -m prime_train.jaxrun")
