"""A good end and the start of another attempt are recognized by their words."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.diagnose.log_end import Banners, is_calm, is_good_end, may_turn, read_end
from prime_train.diagnose.prefilter import normalize
from prime_train.diagnose.progress import measure_progress
from tests.unit.diagnose.made_logs.made_log import made_logs


@pytest.mark.parametrize(
    "line",
    [
        "training finished",
        "successfully completed the run",
        "all 3 jobs done: everything completed",
        "process exited with code 0",
        "`trainer.fit` stopped: `max_epochs=2` reached.",
        "{'train_runtime': 12.3, 'epoch': 3.0}",
        "4 of 4 drills passed",
        "training took 3h 12m",
        "worker group state: workerstate.succeeded",
        "[2026-11-21] 训练完成,模型已保存",
        "학습이 완료되었습니다",
        "entrenamiento finalizado en 3 h",
        "treinamento concluído com sucesso",
        "entraînement terminé",
        "das training wurde abgeschlossen",
        "обучение завершено",
    ],
)
def test_a_report_of_completed_work(line: str) -> None:
    assert is_good_end(line)


@pytest.mark.parametrize(
    "line",
    [
        "training finished with errors",
        "the run did not complete",
        "training failed",
        "process exited with code 1",
        "worker died unexpectedly (exit code: 0)",
        "3 of 4 drills passed",
        "step 3 complete",
    ],
)
def test_no_report_of_completed_work(line: str) -> None:
    assert not is_good_end(line, weak=True)


def test_a_script_does_not_end_a_training_that_was_cut_short() -> None:
    def ends_well(step: int) -> bool:
        lines = [f"iteration {step}/ 900 | loss: 2.3".encode(), b"Job finished at Sat Nov 28 04:00:00 UTC 2026"]
        return read_end(lines, 2, has_failed=False).is_good

    assert ends_well(900)
    assert not ends_well(14)


def test_signs_that_a_failed_process_gives_too_are_weak() -> None:
    assert is_good_end("info:     application shutdown complete.", weak=True)
    assert not is_good_end("info:     application shutdown complete.")


def test_a_first_line_that_each_process_writes_is_no_banner() -> None:
    one, several = Banners(), Banners()
    one.read_start("my-trainer 1.2 on node7")
    for _ in range(2):
        several.read_start("my-trainer 1.2 on node7")
    assert one.starts_attempt("my-trainer 1.2 on node7")
    assert not several.starts_attempt("my-trainer 1.2 on node7")


LINES = st.text("ab1:.#- ", min_size=12, max_size=14).filter(str.strip)


@pytest.mark.parametrize(
    "line",
    [
        "====================================",
        "sat nov 28 04:00:00 utc 2026",
        "epoch 10:  93%|#########3| 18625/20000 [5:43:21<25:20,  0.90it/s]",
        "step 1 loss 2.980 lr 1e-4",
    ],
)
def test_a_line_that_comes_again_within_one_attempt_is_no_banner(line: str) -> None:
    banners = Banners()
    banners.read_start(line)
    assert not banners.starts_attempt(line)


@given(LINES, LINES | st.none(), st.sampled_from(["", "17", "1:15", "x"]))
def test_a_repetition_of_the_first_line_is_one_up_to_its_numbers(first: str, other: str | None, end: str) -> None:
    line = (first if other is None else other) + end
    banners = Banners()
    banners.read_start(first)
    tells_a_start = len(first.strip()) >= 12 and len(re.findall("[ab]{2,}", first)) > 1
    kept = tells_a_start and not line[:1].isspace()
    assert banners.repeats_first(line) == (kept and normalize(line) == normalize(first))


@pytest.mark.parametrize(
    "line", ["restarting training from checkpoint", "attempt 2/3", "restart_count=1", "launching job"]
)
def test_words_of_a_banner(line: str) -> None:
    assert Banners().starts_attempt(line)


@pytest.mark.parametrize(
    "line",
    [
        "=== running the epilogue ===",
        "=== run finished ===",
        "restarting the job is disabled",
        "launching the run report",
    ],
)
def test_what_follows_the_work_is_no_banner(line: str) -> None:
    assert not Banners().starts_attempt(line)


@pytest.mark.parametrize("line", ["attempt 2 failed", '  file "/a/launcher.py", line 3, in attempt', "step 3 of 9"])
def test_no_banner(line: str) -> None:
    assert not Banners().starts_attempt(line)


def test_a_line_that_cannot_turn_shows_nothing() -> None:
    lines = {line for log in made_logs() for line in log.text().lower().split("\n")[:2000]}
    plain = {line for line in lines if not may_turn(line)}
    assert min(len(plain), len(lines - plain)) > 500
    shown = {line for line in plain if is_calm(line) or measure_progress(line)[0] or Banners().starts_attempt(line)}
    assert shown == set()
