"""The records of a job in a run directory: what is written is read again, and other texts are no record."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.away.slurm import record
from prime_train.away.slurm.record import SlurmJob
from prime_train.away.slurm.requeue import StartProgress
from prime_train.core.rundir import RunDir


@pytest.mark.parametrize("job", [SlurmJob("12", "", 5.5), SlurmJob("900000000001", "gpu-2.site", 1.0)])
def test_a_job_and_its_progress_are_read_again(tmp_path: Path, job: SlurmJob) -> None:
    run_dir, progress = RunDir(tmp_path), StartProgress(job.job_id, 3, 40, 1)
    assert (record.read_job(run_dir), record.read_progress(run_dir)) == (None, None)
    record.write_job(run_dir, job)
    record.write_progress(run_dir, progress)
    assert (record.read_job(run_dir), record.read_progress(run_dir)) == (job, progress)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


@given(
    job_id=JSON | st.sampled_from(["-5", "1 --me", "$(id)", "1\n2", "٣"]),
    cluster=JSON | st.sampled_from(["", "-x", "a b", "../x"]),
    number=JSON,
)
def test_a_hostile_record_gives_no_option_to_a_command(
    tmp_path_factory: pytest.TempPathFactory, job_id: object, cluster: object, number: object
) -> None:
    run_dir = RunDir(tmp_path_factory.mktemp("run"))
    run_dir.slurm.mkdir()
    values = {"version": 1, "job_id": job_id, "cluster": cluster, "submitted_s": number}
    (run_dir.slurm / "job.json").write_text(json.dumps(values), encoding="utf-8")
    job = record.read_job(run_dir)
    if job is not None:
        assert job.job_id.isascii()
        assert job.job_id.isdecimal()
        assert not job.cluster.startswith("-")
        assert not set(job.cluster) & set(" /\n")
    values = {"version": 1, "job_id": "7", "restarts": number, "step": job_id, "fruitless": 0}
    (run_dir.slurm / "progress.json").write_text(json.dumps(values), encoding="utf-8")
    progress = record.read_progress(run_dir)
    assert progress is None or (progress.restarts >= 0 and progress.step >= 0)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"version": 2, "job_id": "1"}', "null", "\ud800"])
def test_another_text_is_no_record(tmp_path: Path, text: str) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.slurm.mkdir()
    (run_dir.slurm / "job.json").write_bytes(text.encode(errors="surrogatepass"))
    assert record.read_job(run_dir) is None


def test_a_pipe_in_place_of_a_record_does_not_block(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.slurm.mkdir()
    os.mkfifo(run_dir.slurm / "job.json")
    assert record.read_job(run_dir) is None


def test_a_request_to_stop_counts_for_its_job_alone(tmp_path: Path) -> None:
    run_dir, job = RunDir(tmp_path), SlurmJob("12", "", 0.0)
    record.write_job(run_dir, job)
    assert not record.stop_requested(run_dir, "12")
    record.request_stop(run_dir, job)
    assert record.stop_requested(run_dir, "12")
    assert not record.stop_requested(run_dir, "1")
    assert not record.stop_requested(run_dir, "13")
    record.withdraw_stop(run_dir)
    assert not record.stop_requested(run_dir, "12")


@pytest.mark.parametrize(
    ("line", "found"), [("12\n", ("12", "")), ("12;east\n", ("12", "east")), ("x", None), ("1;-M", None)]
)
def test_what_sbatch_prints_is_a_job(line: str, found: tuple[str, str] | None) -> None:
    job = record.parse_submitted(line, 1.0)
    assert (job and (job.job_id, job.cluster)) == found
