import sys
from dataclasses import replace
from pathlib import Path

import pytest

from prime_train.core.installation import install_command
from prime_train.events import (
    AlarmCleared,
    AlarmRaised,
    AlertSent,
    BatchShrunk,
    CheckpointDeleted,
    CheckpointPacked,
    EvidenceKept,
    GpuLeftOut,
    LogNoticed,
    RunClosed,
    SpaceFreed,
)
from prime_train.views import text as markdown
from prime_train.views.run import report
from prime_train.views.run.history import gather
from tests.unit.views.written_runs import (
    DEATH,
    FIRST_ATTEMPT,
    SECOND_ATTEMPT,
    WHOLE_LIFE,
    Timeline,
    write_metrics,
    write_run,
)

_RESOLVED = """{"run": {"name": "small", "max_steps": 100},
 "model": {"path": null, "layers": 4, "hidden_size": 256, "heads": 4},
 "data": {"sources": [{"kind": "python-stdlib", "path": null}], "ctx_tokens": 256},
 "optim": {"lr": 0.002}, "schedule": {"kind": "wsd"}}"""


def test_the_report_shows_what_ran_how_it_went_and_how_to_continue(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "small", WHOLE_LIFE)
    write_metrics(run_dir, 100)
    run_dir.resolved.write_text(_RESOLVED, encoding="utf-8")
    report.write(run_dir)
    text = run_dir.report.read_text(encoding="utf-8")
    for part in (
        "**finished**: step 100 of 100 in 24 s, 2 attempts, 1 restart.",
        "| model | 4.3 M parameters, 4 layers of width 256, 4 heads |",
        "| device | cpu, fp32 |",
        "| data | python-stdlib; 256 tokens per sequence |",
        "| optimizer | AdamW, learning rate 0.002, wsd |",
        "![loss](plots/loss.png)",
        "![throughput](plots/throughput.png)",
        "Held-out loss: 5.7500 at step 50 -> 4.6250 at step 100, 44% below the 8.3178 of a uniform guess",
        "| forward and backward | 250.0 ms | 250.0 ms | 50.0% |",
        "**Attempt 1 failed at step 60: killed by signal 9 (SIGKILL).** Something outside sent it.",
        "Attempt 2 started 1.1 s after the failure from the checkpoint of step 50; 10 steps repeated.",
        "`step_60: no COMPLETE.json: the save did not finish`",
        "| 100 | 47.7 MiB | 10.0 ms | 0.3 s |",
        f"prime-train run {run_dir.path}/config.toml",
    ):
        assert part in text, part


def test_a_loss_above_that_of_a_guess_is_named_as_such(tmp_path: Path) -> None:
    history = gather(write_run(tmp_path / "small", WHOLE_LIFE))
    worse = history._replace(evaluations=tuple(replace(each, loss=9.1496) for each in history.evaluations))
    assert ", 10% above the 8.3178 of a uniform guess" in report.held_out(worse)


def test_a_sample_that_holds_a_fence_stays_inside_its_own(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, WHOLE_LIFE)
    text = report.text(gather(run_dir), [], "")
    assert "````text\nimport sys\n```\nimport os\n````" in text


@pytest.mark.parametrize("damaged", [_RESOLVED.replace('"lr": 0.002', '"lr": "x"'), '{"data": {"sources": [7]}}', "[]"])
def test_with_a_damaged_config_the_report_is_written_without_it(tmp_path: Path, damaged: str) -> None:
    run_dir = write_run(tmp_path / "small", WHOLE_LIFE)
    run_dir.resolved.write_text(damaged, encoding="utf-8")
    report.write(run_dir)
    text = run_dir.report.read_text(encoding="utf-8")
    assert "**finished**" in text
    assert "| optimizer |" not in text


def test_without_a_readable_config_the_model_has_no_sizes(tmp_path: Path) -> None:
    text = report.text(gather(write_run(tmp_path, WHOLE_LIFE)), [], "")
    assert "| model | 4.3 M parameters |" in text


def test_a_failed_run_has_its_reason_and_exit_code(tmp_path: Path) -> None:
    closed = (12.5, "supervisor", RunClosed("failed", 6, "1 attempt in a row"))
    text = report.text(gather(write_run(tmp_path, (*FIRST_ATTEMPT, *DEATH, closed))), [], "")
    assert "**failed**: step 60 of 100 in 12 s, 1 attempt, 0 restarts; exit code 6: 1 attempt in a row." in text
    assert "**Attempt 1 failed at step 60: killed by signal 9 (SIGKILL).**" in text


def test_a_run_that_has_not_begun_has_a_report_too(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, ())
    report.write(run_dir)
    text = run_dir.report.read_text(encoding="utf-8")
    assert "No attempt." in text
    assert "*No step was recorded yet.*" in text
    assert not run_dir.plots.exists()


def test_without_matplotlib_the_report_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = write_run(tmp_path / "small", WHOLE_LIFE)
    write_metrics(run_dir, 10)
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)  # makes the import raise ImportError
    report.write(run_dir)
    assert install_command("train") in run_dir.report.read_text(encoding="utf-8")


def test_a_long_table_shows_its_beginning_and_end() -> None:
    rows = [(str(number), "a|b") for number in range(50)]
    lines = markdown.table(("n", "text"), rows).splitlines()
    assert len(lines) == 2 + 10 + 1 + 10
    assert lines[2] == "| 0 | a\\|b |"
    assert lines[12] == "| (30 more) |  |"
    assert lines[-1] == "| 49 | a\\|b |"


def test_the_report_shows_alarms_and_what_was_done_about_them(tmp_path: Path) -> None:
    path = tmp_path / "small"
    lost = AlarmRaised(
        1, "gpu", "gpu_lost", "GPU 1", "restart", "hardware", "it is lost", "a riser", "reseat it", "G", 60
    )
    full = AlarmRaised(2, "disk", "disk_filling", "", "alert", "disk", "full in 38 min", "saves", "free some", "", 70)
    timeline: Timeline = (
        *FIRST_ATTEMPT,
        (10.2, "supervisor", lost),
        (10.4, "supervisor", EvidenceKept(1, str(path / "attempts/001/evidence"), ("stacks.txt", "gpus.txt"))),
        *DEATH,
        (12.2, "supervisor", BatchShrunk(1, 4)),
        (12.3, "supervisor", GpuLeftOut("GPU-1", "2 attempts were ended for it")),
        *SECOND_ATTEMPT[:3],
        (16.0, "supervisor", full),
        (
            16.1,
            "supervisor",
            LogNoticed(2, "VLLM050", "a request was rejected | too long", "/nowhere/inference.log", 17),
        ),
        (16.2, "supervisor", SpaceFreed(2, "/nowhere/step_10", 3 * 2**30, "superseded by step_50")),
        (16.3, "supervisor", SpaceFreed(2, "/nowhere/step_20", 2**30, "superseded by step_50", "it is in use")),
        (16.4, "supervisor", CheckpointPacked(30, 4 * 2**30, 3 * 2**30, 9.0)),
        (16.5, "trainer-002-rank0", CheckpointDeleted(2, 40, "keep_last")),
        (16.6, "supervisor", AlertSent("webhook", "gpu", "the server answered 404")),
        (136.0, "supervisor", AlarmCleared(2, "disk", "disk_filling", "")),
    )
    text = report.text(gather(write_run(path, timeline)), [], "")
    for part in (
        "After attempt 1 the micro-batch is 4, because memory ran out.",
        "`GPU-1` is left out if enough other GPUs remain: 2 attempts were ended for it.",
        "[attempts/001/evidence](attempts/001/evidence) was written: stacks.txt, gpus.txt.",
        "| 1 | gpu | GPU 1: it is lost | reseat it | attempt 1 was ended because of it |",
        "| 1 | disk | full in 38 min | free some | over after 2 min 00 s |",
        "| VLLM050 | a request was rejected \\| too long | /nowhere/inference.log:17 |",
        "3.0 GiB were freed:",
        "| step_20 | 1.0 GiB | not deleted: it is in use |",
        "1 superseded checkpoint packed without loss: 4.0 GiB to 3.0 GiB.",
        "The trainer deleted 1 superseded checkpoint, as configured.",
        "1 alert by webhook failed: the server answered 404.",
    ):
        assert part in text, (part, text)
