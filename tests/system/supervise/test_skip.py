"""A real training on text with one document of noise: the policy goes back, and leaves the steps of the noise out."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from prime_train.core.plans import read_plans
from prime_train.core.rundir import RunDir
from prime_train.events import InstabilityFound, LaunchAsked, RunClosed, SettingsAccepted, StepSkipped
from prime_train.trainer import draws
from prime_train.trainer.data.order import DocumentOrder
from prime_train.views.run.status import fold_events
from tests.system.programs.command.commands import Supervised
from tests.unit.cli.commands import wait_until
from tests.unit.trainer import tiny

STEPS = 400
DOCUMENTS, SEED, HELD_OUT = 460, 7, 0.02  # each document has about the tokens of one step
NOISY = 80  # so many documents are read before the noise
CONFIG = """
[run]
name = "noisy"
seed = {seed}
max_steps = {steps}
[model]
layers = 2
hidden_size = 32
heads = 2
kv_heads = 1
mlp_size = 64
[[data.sources]]
kind = "files"
path = "../texts"
[data]
ctx_tokens = 32
pack_buffer_docs = 1  # so the rows of a document are in steps that follow each other
loader_workers = 0
[tokenizer]
vocab_size = 300
[batch]
micro_batch = 4
global_batch = 4
[optim]
lr = 0.004
{skip_steps}
[schedule]
kind = "wsd"
warmup_steps = 5
decay_steps = 20
[checkpoint]
interval_steps = 5
keep_last = 80  # steps of milliseconds: the one before the noise would be deleted before the noise is found
[eval]
interval_steps = 1  # each step is reported at once then
held_out_ratio = {held_out}
batches = 1
[prime_train.cleanup]
enabled = false
[prime_train.restart]
backoff_s = 0.1
[prime_train.instability]
policy = "{policy}"
action = "skip"
cool_down_steps = 5
"""


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Words of a few kinds, and one document of bytes that no other one has."""
    folder, chance = tmp_path / "texts", random.Random(0)
    folder.mkdir()
    train, _ = draws.split(DOCUMENTS, HELD_OUT, SEED, 0)
    noisy = train[DocumentOrder(SEED, (len(train),), None, 1).documents(0, NOISY, 1)[0]]
    for number in range(DOCUMENTS):
        words = (chance.choice(("alpha", "beta", "loss", "step")) for _ in range(100))
        noise = "".join(chance.choice("#$%&*+;<=>?@[]^_{|}~0123456789") for _ in range(380))
        (folder / f"{number:03d}.txt").write_text(noise if number == noisy else " ".join(words))
    return folder


def start(folder: Path, policy: str, skipped: Sequence[int] = ()) -> Supervised:
    folder.mkdir(exist_ok=True)
    skip_steps = f"skip_steps = {list(skipped)}"
    values = {"policy": policy, "skip_steps": skip_steps, "steps": STEPS, "seed": SEED, "held_out": HELD_OUT}
    (folder / "noisy.toml").write_text(CONFIG.format(**values))
    return Supervised(folder, "noisy.toml")


def finish(supervised: Supervised) -> RunDir:
    try:
        code, err = supervised.await_end()
    finally:
        supervised.kill()
    assert code == 0, err
    return supervised.run_dir


def read_losses(run_dir: RunDir) -> list[tuple[int, float, bool]]:
    return [(line["step"], line["loss"], line["skipped"]) for line in tiny.metrics(run_dir)]


@pytest.mark.usefixtures("texts")
def test_the_policy_goes_back_and_leaves_the_noise_out_also_where_the_run_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    first = start(tmp_path / "own", "auto")
    try:
        run_dir = first.run_dir
        wait_until(lambda: first.process.poll() is not None or list_skipped(run_dir) != [])
        skipped = list_skipped(run_dir)
        wait_until(lambda: first.process.poll() is not None or has_left_out(run_dir, skipped))
        first.process.send_signal(signal.SIGKILL)  # its trainer ends with it
        first.process.wait()
    finally:
        first.kill()
    assert fold_events(run_dir).step < STEPS
    finish(start(tmp_path / "own", "auto"))

    events = tiny.events(run_dir)
    [found] = [event for event in events if isinstance(event, InstabilityFound)]
    [changed] = [event for event in events if isinstance(event, SettingsAccepted)]
    assert (found.auto, changed.by) == (True, "policy")
    assert skipped == [*range(found.step - 1, found.step + 3)]
    assert 0 < found.go_back_to <= found.step - 4
    launched = [event.resume_step for event in events if isinstance(event, LaunchAsked)]
    assert launched[:2] == [0, found.go_back_to]
    assert len(launched) == 3
    left_out = {(event.step, event.reason) for event in events if isinstance(event, StepSkipped)}
    assert left_out == {(step, "optim.skip_steps has it") for step in skipped}
    assert [event.state for event in events if isinstance(event, RunClosed)] == ["finished"]

    losses = read_losses(run_dir)
    assert [(step, is_skipped) for step, _, is_skipped in losses] == [(n, n in skipped) for n in range(1, STEPS + 1)]
    noise = [loss for step, loss, _ in losses if step in skipped[1:]]
    assert min(noise) > 2 * max(loss for step, loss, _ in losses if step > skipped[-1]), "no weights learned from it"
    assert losses == read_losses(finish(start(tmp_path / "never", "off", skipped))), "as if it was never trained on"


def has_left_out(run_dir: RunDir, skipped: Sequence[int]) -> bool:
    """Whether the second attempt is beyond the steps that the policy leaves out."""
    state = fold_events(run_dir)
    return state.attempt_number == 2 and state.step >= skipped[-1]


def list_skipped(run_dir: RunDir) -> list[int]:
    """The steps that the policy leaves out; empty before it has found any."""
    return [step for plan in read_plans(run_dir.settings) for step in plan.values["optim.skip_steps"]]
