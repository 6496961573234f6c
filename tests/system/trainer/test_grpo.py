"""Whole RL runs of the real trainer, with the local engine and a built-in environment."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prime_train import spec
from prime_train.checkpoints import layout, removal
from prime_train.core.plans import ChangePlan, write_plan
from prime_train.core.rundir import RunDir
from prime_train.events import (
    CheckpointSaved,
    RolloutsFailed,
    TasksEvaluated,
    TrainerFailed,
    TrainerFinished,
    TrainerStopped,
)
from prime_train.spec import RunSpec
from prime_train.spec.answers import rl_settings
from prime_train.spec.rl import Adapter, Rl, TaskSource
from prime_train.supervise.launch.run_directory import write_applied
from tests.system.trainer.test_resume import contents, differences
from tests.unit.trainer import tiny
from tests.unit.trainer.chats.chats import write_glm

# Not of the training: how long it took, how much memory it needed, and what happened to be finished.
MEASURED = frozenset(
    {"step_s", "data_s", "forward_backward_s", "optimizer_s", "checkpoint_s", "rollouts_s", "weights_s"}
)
MEASURED |= {"tokens_per_s", "peak_memory_gib", "mfu", "waiting"}


def rl_run(**parts: Any) -> RunSpec:
    """A run of 12 steps, of which the first four imitate."""
    run = RunSpec(
        run=spec.Run(name="tiny", kind="rl", max_steps=12, seed=7),
        model=spec.Model(layers=2, hidden_size=32, heads=2, mlp_size=64),
        data=spec.Data(sources=(), ctx_tokens=48),
        tokenizer=spec.Tokenizer(vocab_size=276),
        batch=spec.Batch(micro_batch=8, global_batch=16),
        optim=spec.Optim(lr=3e-3),
        schedule=spec.Schedule(kind="constant", warmup_steps=2),
        checkpoint=spec.Checkpoint(interval_steps=4, keep_every_steps=4),
        eval=spec.Eval(interval_steps=6, tasks=4),
        rl=Rl(group_size=4, warmup_steps=4, answer_tokens=8, mask_truncated=False),
        tasks=(TaskSource(kind="reverse-text", arguments={"min_letters": 2, "max_letters": 2}),),
    )
    return replace(run, **parts)


def training_lines(run_dir: RunDir) -> list[dict[str, Any]]:
    return [{name: line[name] for name in line.keys() - MEASURED} for line in tiny.metrics(run_dir)]


def finish(run_dir: RunDir, **options: Any) -> None:
    code, output = tiny.train(run_dir, **options)
    assert code == 0, output


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A whole run."""
    run_dir = tiny.prepare(tmp_path_factory.mktemp("grpo") / "straight", rl_run())
    finish(run_dir)
    return run_dir


def test_a_run_imitates_then_learns_from_rewards_and_is_evaluated(straight: RunDir) -> None:
    lines = tiny.metrics(straight)
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert ["reward" in line for line in lines] == [False] * 4 + [True] * 8
    assert [line["behind_steps"] for line in lines[4:]] == [0.0] + [1.0] * 7
    assert all(line["rollouts"] == 16 and line["failed"] == 0 for line in lines[4:])
    assert all(line["mismatch_kl"] < 1e-6 for line in lines[4:] if line["mismatch_kl"] is not None)
    evaluated = [event.step for event in tiny.events(straight) if isinstance(event, TasksEvaluated)]
    assert evaluated == [6, 12]
    assert isinstance(tiny.events(straight)[-1], TrainerFinished)


IMPORTED = """
import sys
from prime_train.trainer import __main__ as trainer
code = trainer.main([sys.argv[1], "--attempt", "1"])
print(*[name for name in sys.modules if name.startswith("prime_train.trainer")], sep="\\n")
sys.exit(code)
"""


def test_a_run_on_rewards_loads_no_module_of_the_training_data(tmp_path: Path) -> None:
    run = rl_run(run=spec.Run(name="tiny", kind="rl", max_steps=4, seed=7), eval=spec.Eval(interval_steps=2, tasks=2))
    run_dir = tiny.prepare(tmp_path, replace(run, rl=replace(rl_settings(run), warmup_steps=1)))
    program = [sys.executable, "-c", IMPORTED, str(run_dir.path)]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PRIME_TRAIN_CACHE": str(tmp_path / "cache"),
    }  # trains a tokenizer
    ended = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=tiny.DEADLINE_S)
    assert ended.returncode == 0, ended.stderr
    assert [line["step"] for line in tiny.metrics(run_dir) if "reward" in line] == [2, 3, 4]
    loaded = ended.stdout.splitlines()
    assert "prime_train.trainer.rl.engines.local_engine" in loaded
    assert [name for name in loaded if name.startswith("prime_train.trainer.data")] == []


@pytest.mark.parametrize("step", [4, 8])
def test_a_run_that_was_killed_goes_on_with_equal_steps(straight: RunDir, tmp_path: Path, step: int) -> None:
    endless = replace(rl_run(), run=replace(rl_run().run, max_steps=10**6))
    killed = tiny.prepare(tmp_path / "killed", endless)
    process = tiny.start(killed)
    tiny.until(lambda: any(isinstance(event, CheckpointSaved) and event.step == step for event in tiny.events(killed)))
    tiny.kill(process)
    tiny.prepare(killed.path, rl_run())
    for later in layout.scan(killed.checkpoints):
        if later.step > step:
            removal.remove(later.path)
    finish(killed, number=2, resume_step=step)
    assert training_lines(killed) == training_lines(straight)
    one = contents(straight.checkpoint(12), tmp_path / "one.pt")
    other = contents(killed.checkpoint(12), tmp_path / "other.pt")
    assert differences(one, other) == []


def test_another_temperature_counts_for_the_rollouts_after_it_and_again_after_a_resume(
    straight: RunDir, tmp_path: Path
) -> None:
    changed = tiny.prepare(tmp_path / "changed", rl_run())
    plan = ChangePlan(version=1, values={"rl.temperature": 0.5}, before={}, config={"rl.temperature": 1.0})
    write_plan(changed.settings, plan)
    write_applied(((1, 9),), changed, 1)  # as after a kill: its step is known
    finish(changed)
    before, after = training_lines(straight), training_lines(changed)
    # The rollouts of step 9 were started in step 8. Before its update, those of step 10 are compared with the engine.
    assert [line | {"mismatch_kl": None} for line in after[:9]] == [line | {"mismatch_kl": None} for line in before[:9]]
    # A step whose rewards are equal learns nothing, and measures no entropy.
    assert (
        0 < max(line["entropy"] for line in after[9:]) < min(line["entropy"] for line in before[4:] if line["tokens"])
    )
    assert all(line["mismatch_kl"] < 1e-6 for line in after[4:] if line["mismatch_kl"] is not None)
    for later in layout.scan(changed.checkpoints):
        if later.step > 8:
            removal.remove(later.path)
    write_applied(((1, 9),), changed, 2, 8)
    finish(changed, number=2, resume_step=8)
    assert training_lines(changed) == after


def test_a_template_whose_turns_end_with_the_next_message_is_learned_and_rolled_out(tmp_path: Path) -> None:
    """As that of GLM-4-MoE: with a tool, and with thoughts."""
    run = rl_run(
        tasks=(TaskSource(kind="calculator", arguments={"min_numbers": 2, "max_numbers": 2, "max_number": 9}),),
        tokenizer=spec.Tokenizer(path=str(write_glm(tmp_path / "glm"))),
        data=spec.Data(sources=(), ctx_tokens=640),
        batch=spec.Batch(micro_batch=4, global_batch=8),
    )
    limits = replace(rl_settings(run), answer_tokens=128, warmup_steps=10)
    run_dir = tiny.prepare(tmp_path / "run", replace(run, rl=limits))
    finish(run_dir)
    lines = tiny.metrics(run_dir)
    assert lines[9]["loss"] < lines[0]["loss"]
    assert all(line["rollouts"] == 8 and line["failed"] == 0 for line in lines[10:])


def test_without_overlap_every_rollout_is_of_the_weights_of_its_step(tmp_path: Path) -> None:
    run = rl_run(rl=replace(rl_settings(rl_run()), max_behind_steps=0))
    run_dir = tiny.prepare(tmp_path / "run", run)
    finish(run_dir)
    lines = tiny.metrics(run_dir)[4:]
    assert {line["behind_steps"] for line in lines} == {0.0}
    assert all(line["mismatch_kl"] < 1e-6 for line in lines if line["tokens"])


def test_more_overlap_stays_within_its_bound(tmp_path: Path) -> None:
    run = rl_run(rl=replace(rl_settings(rl_run()), max_behind_steps=3))
    run_dir = tiny.prepare(tmp_path / "run", run)
    finish(run_dir)
    lines = tiny.metrics(run_dir)[4:]
    assert max(line["behind_steps"] for line in lines) <= 3
    assert sum(line["too_old"] for line in lines) == 0


def test_a_stop_during_rollouts_saves_them_and_the_run_goes_on(tmp_path: Path) -> None:
    slow = TaskSource(kind="calculator", arguments={"tool_delay_s": 0.2})
    run = rl_run(tasks=(slow,), data=spec.Data(sources=(), ctx_tokens=256), tokenizer=spec.Tokenizer(vocab_size=320))
    run = replace(run, run=replace(run.run, max_steps=6), prime_train=spec.PrimeTrain(stop_grace_s=8.0))
    run_dir = tiny.prepare(tmp_path / "run", replace(run, run=replace(run.run, max_steps=10**6)))
    process = tiny.start(run_dir)
    tiny.until(lambda: run_dir.metrics.exists() and len(tiny.metrics(run_dir)) >= 5)
    process.terminate()
    output, _ = process.communicate(timeout=tiny.DEADLINE_S)
    assert process.returncode == 0, output
    stopped = tiny.events(run_dir)[-1]
    assert isinstance(stopped, TrainerStopped)
    tiny.prepare(run_dir.path, replace(run, run=replace(run.run, max_steps=stopped.step + 2)))
    finish(run_dir, number=2, resume_step=stopped.step)
    assert [line["step"] for line in tiny.metrics(run_dir)] == list(range(1, stopped.step + 3))


def test_adapters_and_a_reference_go_on_after_a_stop_of_the_run(tmp_path: Path) -> None:
    run = rl_run(
        model=replace(rl_run().model, lora=Adapter(rank=4)),
        rl=replace(rl_settings(rl_run()), kl_coef=0.1),
        checkpoint=spec.Checkpoint(interval_steps=4, keep_every_steps=4, final="hf"),
    )
    straight = tiny.prepare(tmp_path / "straight", run)
    finish(straight)
    lines = tiny.metrics(straight)
    assert lines[4]["reference_kl"] == pytest.approx(0.0, abs=1e-9)
    assert (straight.final / "model.safetensors").is_file()
    for later in layout.scan(straight.checkpoints):
        if later.step > 8:
            removal.remove(later.path)
    before = training_lines(straight)
    finish(straight, number=2, resume_step=8)
    assert training_lines(straight) == before


@pytest.mark.parametrize("dp_shard", [1, 2], ids=["DDP", "FSDP2"])
def test_two_ranks_make_the_steps_of_one(straight: RunDir, tmp_path: Path, dp_shard: int) -> None:
    run = rl_run(parallel=spec.Parallel(processes=2, dp_shard=dp_shard))
    run_dir = tiny.prepare(tmp_path / "run", run)
    finish(run_dir, processes=2)
    expected = tiny.metrics(straight)
    lines = tiny.metrics(run_dir)
    assert [line["tokens"] for line in lines[:6]] == [line["tokens"] for line in expected[:6]]
    assert [line["loss"] for line in lines[:6]] == pytest.approx([line["loss"] for line in expected[:6]], abs=1e-4)
    assert isinstance(tiny.events(run_dir)[-1], TrainerFinished)
    finish(
        tiny.prepare(run_dir.path, replace(run, run=replace(run.run, max_steps=14))),
        number=2,
        resume_step=12,
        processes=2,
    )
    assert len(tiny.metrics(run_dir)) == 14


def test_a_run_whose_environment_fails_ends_and_names_the_first_error(tmp_path: Path) -> None:
    source = replace(rl_run().tasks[0], limit_s=1e-9)  # some calls are too slow for this
    run = rl_run(tasks=(source,), rl=replace(rl_settings(rl_run()), max_failed_ratio=0.0))
    run_dir = tiny.prepare(tmp_path / "run", replace(run, run=replace(run.run, max_steps=100)))
    code, output = tiny.train(run_dir)
    assert code == 5, output
    events = tiny.events(run_dir)
    lost = next(event for event in events if isinstance(event, RolloutsFailed))
    assert (lost.step, lost.asked) == (5, 16)
    (failed,) = (event for event in events if isinstance(event, TrainerFailed))
    assert "rollouts failed" in failed.what
    assert lost.reason in failed.what
