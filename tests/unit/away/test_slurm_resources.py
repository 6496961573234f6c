"""What a job asks for: from the config, the size of the model, measured times and the time limit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.away.slurm.resources import MARGIN_S, CoreMemory, KnownRun, plan
from prime_train.away.slurm.script import parse_mib
from prime_train.core.errors import UserError
from prime_train.spec import Data, Parallel, Run, RunSpec, Source
from prime_train.spec.answers import replace_parts
from prime_train.spec.audio import Audio
from prime_train.spec.command import CommandSpec
from prime_train.spec.prime_rl_parts import Deployment, LaunchPart, Trainer

RUN = RunSpec(
    run=Run(name="a", max_steps=1000),
    data=Data(sources=(Source(kind="python-stdlib"),), loader_workers=2),
    parallel=Parallel(processes=8, dp_shard=8),
)
BILLION = KnownRun(parameters=10**9, vocab_size=32_000)


def _with(**values: Any) -> RunSpec:
    return replace(RUN, **values)


def test_a_job_asks_for_a_gpu_and_cores_for_each_process() -> None:
    resources = plan(RUN, BILLION, 600).resources
    assert (resources.gpus, resources.cpus, resources.limit_minutes) == (8, 1 + 8 * 4, 600)


def test_the_threads_of_audio_workers_have_cores_on_each_node() -> None:
    audio = _with(audio=Audio(threads=3), parallel=Parallel(processes=16, dp_shard=16, machines=2))
    resources = plan(audio, KnownRun(10**7, 400), 600).resources
    assert (resources.nodes, resources.cpus) == (2, 1 + 8 * (2 + 2 * 3))
    on_cpu = plan(audio, KnownRun(10**7, 400), 600, has_gpus=False).resources
    more = plan(audio, KnownRun(10**7, 400 * 512), 600, has_gpus=False).resources
    assert (more.memory_mib or 0) - (on_cpu.memory_mib or 0) < 20 * 1024  # one row of logits for a clip


def test_each_process_of_a_command_has_cores() -> None:
    command = CommandSpec(argv=("torchrun", "--nproc-per-node", "2", "train.py"), processes=2)
    run = RunSpec(run=Run(name="a", kind="command", max_steps=9), data=Data(sources=()), command=command)
    found = plan(replace(run, parallel=Parallel(processes=2)), KnownRun(), 60)
    assert (found.resources.gpus, found.resources.cpus) == (2, 1 + 2 * (2 + Data(sources=()).planned_workers))
    assert [note.partition(":")[0] for note in found.notes] == ["memory", "cores"]


def test_memory_holds_the_staged_state_and_every_process() -> None:
    few, more = plan(RUN, BILLION, 600).resources, plan(RUN, KnownRun(10**10, 32_000), 6000).resources
    assert few.memory_mib is not None
    assert more.memory_mib is not None
    assert few.memory_mib * 2**20 > 16 * 10**9 + 26 * 0.6 * 2**30
    assert (more.memory_mib - few.memory_mib) * 2**20 == pytest.approx(1.5 * 16 * 9 * 10**9, rel=0.02)


def test_a_job_without_gpus_has_the_memory_of_a_training_on_the_cpu() -> None:
    on_gpu, on_cpu = plan(RUN, BILLION, 600), plan(RUN, BILLION, 600, has_gpus=False)
    assert on_cpu.resources.gpus == 0
    assert (on_cpu.resources.memory_mib or 0) * 2**20 > (on_gpu.resources.memory_mib or 0) * 2**20 + 16 * 10**9


def test_what_is_not_known_is_left_to_the_partition_and_noted() -> None:
    found = plan(RUN, KnownRun(), None)
    assert (found.resources.memory_mib, found.resources.limit_minutes) == (None, None)
    assert [note.partition(":")[0] for note in found.notes] == ["memory", "time"]


def test_the_signal_comes_as_early_as_a_save_needs() -> None:
    quick = plan(RUN, KnownRun(save_s=2.0, longest_step_s=0.5), 600)
    assert (quick.stop_grace_s, quick.resources.notice_s) == (60.0, 60 + MARGIN_S)
    slow = plan(RUN, KnownRun(save_s=300.0, longest_step_s=20.0), 600)
    assert (slow.stop_grace_s, slow.resources.notice_s) == (620.0, 620 + MARGIN_S)
    assert "measured" in "".join(slow.notes)
    assert plan(RUN, KnownRun(10**10, 32_000), 600).stop_grace_s == 2 * 12 * 10**10 / 0.3e9


def test_a_program_that_does_not_save_at_a_stop_needs_no_time_for_it() -> None:
    known = KnownRun(save_s=300.0, longest_step_s=900.0, saves_on_stop=False)
    assert plan(RUN, known, 600).stop_grace_s == RUN.prime_train.stop_grace_s


def test_the_time_limit_covers_the_steps_that_are_left() -> None:
    whole = plan(RUN, KnownRun(step_s=6.0), None).resources.limit_minutes
    rest = plan(RUN, KnownRun(step_s=6.0, done_steps=900), None).resources.limit_minutes
    assert whole is not None
    assert rest is not None
    assert whole - rest == 90
    assert plan(RUN, KnownRun(longest_step_s=9.0), None).resources.limit_minutes is None


@given(minutes=st.integers(1, 30), grace_s=st.floats(1, 1500))
def test_no_job_is_asked_to_save_before_it_starts(minutes: int, grace_s: float) -> None:
    run = _with(prime_train=replace(RUN.prime_train, stop_grace_s=grace_s))
    if math.ceil(grace_s) + MARGIN_S >= 60 * minutes:
        with pytest.raises(UserError, match="time limit"):
            plan(run, KnownRun(), minutes)
    else:
        notice_s = plan(run, KnownRun(), minutes).resources.notice_s
        assert grace_s + MARGIN_S <= notice_s < 60 * minutes


def test_a_run_on_several_machines_is_refused() -> None:
    launch = replace_parts(
        _with(parallel=Parallel()),
        launch=LaunchPart(),
        trainer=Trainer(),
        deployment=Deployment(kind="multi_node"),
        format="prime-rl",
    )
    with pytest.raises(UserError, match="several machines"):
        plan(launch, KnownRun(), 600)


def test_a_run_on_several_machines_asks_for_the_part_of_each() -> None:
    resources = plan(_with(parallel=Parallel(processes=16, dp_shard=16, machines=2)), BILLION, 600).resources
    assert (resources.nodes, resources.gpus, resources.cpus) == (2, 8, 1 + 8 * 4)
    assert resources.memory_mib == plan(RUN, BILLION, 600).resources.memory_mib


@given(st.integers(1, 10**6), st.integers(1, 10**6) | st.none())
def test_the_cores_have_room_for_the_memory_and_for_the_workers(mib_per_core: int, asked_mib: int | None) -> None:
    plain = plan(RUN, BILLION, 600).resources
    found = plan(RUN, BILLION, 600, core_memory=CoreMemory(mib_per_core, "MaxMemPerCPU", asked_mib))
    needed_mib = plain.memory_mib if asked_mib is None else asked_mib
    assert needed_mib is not None
    assert found.resources.cpus == max(math.ceil(needed_mib / mib_per_core), plain.cpus)
    assert plain.cpus > RUN.data.planned_workers
    assert any("MaxMemPerCPU" in note for note in found.notes) == (found.resources.cpus > plain.cpus)


@pytest.mark.parametrize(
    ("text", "mib"),
    [("64G", 65536), ("2000", 2000), ("512k", None), ("2048K", 2), ("1TB", 2**20), ("0", None), ("x", None)],
)
def test_a_size_is_read_as_sbatch_reads_it(text: str, mib: int | None) -> None:
    assert parse_mib(text) == mib
