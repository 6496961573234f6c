"""The one cause: of our own small logs, of real logs of vLLM, of orders and cuts drawn at random."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.diagnose.cause import UNKNOWN, Diagnosis, judge
from prime_train.diagnose.log_scanner import Scanner, scan

HERE = Path(__file__).parents[2] / "corpus" / "logs"
LOGS = sorted(HERE.glob("*.log"))
RUNS = sorted(path.parent for path in HERE.glob("*/EXPECT"))
VLLM = Path(__file__).parents[4] / "shared" / "facts" / "vllm-logs"
REAL = {
    "gpu_memory_utilization_too_high": ("VLLM001", "oom"),
    "healthy_start": None,
    "import_error_torchvision": ("PY004", "env"),
    "max_model_len_gt_config": ("VLLM008", "config"),
    "max_model_len_kv_cache": ("VLLM002", "config"),
    "model_hub_id_offline": ("HF004", "network"),
    "no_kv_blocks": ("VLLM003", "oom"),
    "no_weights": ("VLLM019", "config"),
    "package_metadata_missing": ("PY003", "env"),
    "port_in_use": ("TORCH003", "env"),
    "quant_unsupported_cpu": ("VLLM020", "config"),
    "tp2_on_one_numa": ("VLLM021", "config"),
    "unknown_flag": ("PY011", "config"),
    "unsupported_arch": ("TF001", "config"),
    "unsupported_arch_known_type": ("VLLM009", "config"),
}


def _expected(text: str) -> tuple[str, str] | None:
    text = text.removeprefix("# expect ").strip()
    identifier, _, cause_class = text.partition(" ")
    return None if text == "healthy" else (identifier, cause_class)


def _reported(found: Diagnosis) -> tuple[str, str] | None:
    return None if found.cause is None else (found.cause.id, found.cause.cause_class)


def _of(*logs: str) -> Diagnosis:
    return judge([scan([log.encode()], f"{number}.log", 1.79e9) for number, log in enumerate(logs)])


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_our_own_logs(path: Path) -> None:
    expected, _, log = path.read_text(encoding="utf-8").partition("\n")
    assert _reported(_of(log)) == _expected(expected)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_it_does_not_matter_how_a_log_is_cut(path: Path) -> None:
    data = path.read_bytes().partition(b"\n")[2]
    whole = judge([scan([data], "a.log")])
    draw = random.Random(path.name)
    scanner = Scanner("a.log")
    while data:
        size = draw.randint(1, 200)
        scanner.feed(data[:size])
        data = data[size:]
    assert judge([scanner.finish()]) == whole


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_the_logs_of_a_run_in_any_order(path: Path) -> None:
    logs = sorted(path.rglob("*.log"))
    newest = [log for log in logs if "attempt_1" not in str(log)]
    expected = _expected((path / "EXPECT").read_text(encoding="utf-8"))
    for seed in range(4):
        draw = random.Random(seed)
        draw.shuffle(newest)
        scans = [scan([log.read_bytes()], log.name, 1.79e9) for log in newest]
        assert _reported(judge(scans)) == expected


@pytest.mark.parametrize("name", REAL)
@pytest.mark.skipif(not VLLM.is_dir(), reason="the logs of a real vLLM are not here")
def test_real_logs_of_vllm(name: str) -> None:
    path = VLLM / f"{name}.log"
    assert _reported(judge([scan([path.read_bytes()], path.name, path.stat().st_mtime)])) == REAL[name]


@pytest.mark.skipif(not VLLM.is_dir(), reason="the logs of a real vLLM are not here")
def test_metrics_of_a_server_are_healthy() -> None:
    assert judge([scan([(VLLM / "metrics.prom").read_bytes()], "metrics.prom")]).cause is None


# --- what wins -------------------------------------------------------------------------------------------

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
FULL = "OSError: [Errno 28] No space left on device\n"
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
STEPS = "".join(f"step {step} | loss: 2.3 | 1.2 s\n" for step in range(3))


def test_the_first_in_time_wins_for_any_the_order_of_files() -> None:
    early, late = f"2026-11-21 10:00:00 ERROR {FULL}", f"2026-11-21 10:05:00 ERROR {OOM}"
    assert _reported(_of(early, late)) == _reported(_of(late, early)) == ("OS001", "disk")


@pytest.mark.parametrize(
    ("early", "late"),
    [
        ("2026-11-21T10:00:00Z ERROR ", "2026-11-21T12:35:00+02:30 ERROR "),
        ("(Worker pid=1) ERROR 09-21 10:00:00 [core.py:1] ", "Sep 21 10:00:01 node7 kernel: "),
        ("E0921 10:00:00.123456 140 core.cpp:1] ", "2026-09-21 10:00:01,000 - train - ERROR - "),
        ("23:59:59 | ERROR | ", "2026-09-22 00:00:10 ERROR "),
    ],
)
def test_times_of_different_kinds_are_compared(early: str, late: str) -> None:
    after_midnight = 1790035300.0  # 2026-09-22 00:01:40 UTC
    for first, second in (("a", "b"), ("b", "a")):
        logs = {"a": (early + FULL, 1790035190.0), "b": (late + OOM, after_midnight)}
        scans = [scan([logs[name][0].encode()], name, logs[name][1]) for name in (first, second)]
        assert _reported(judge(scans)) == ("OS001", "disk")


def test_copied_logs_that_leave_out_day_or_year_are_placed_by_those_that_do_not() -> None:
    copied_s = 1.9e9  # 2030
    logs = (
        "2026-11-21 10:05:00 ERROR " + OOM,
        "10:00:00 | ERROR | " + FULL,
        "(Worker pid=1) ERROR 11-21 10:03:00 [core.py:1] RuntimeError: No CUDA GPUs are available\n",
    )
    for order in ((0, 1, 2), (2, 1, 0)):
        found = judge([scan([logs[number].encode()], f"{number}.log", copied_s) for number in order])
        assert _reported(found) == ("OS001", "disk")
        assert [seen.id for seen in found.cascade] == ["CUDA010", "CUDA001"]


def test_of_logs_without_times_the_one_written_first_wins() -> None:
    scans = [scan([OOM.encode()], "late.log", 2000.0), scan([FULL.encode()], "early.log", 1000.0)]
    assert _reported(judge(scans)) == ("OS001", "disk")


def test_what_only_follows_is_the_cause_where_nothing_else_is() -> None:
    assert _reported(_of(DEAD)) == ("VLLM007", "bug")
    found = _of(DEAD + OOM)
    assert _reported(found) == ("CUDA001", "oom")
    assert [seen.id for seen in found.cascade] == ["VLLM007"]


def test_an_end_long_before_another_error_is_the_cause() -> None:
    assert _reported(_of(f"2026-11-21 10:00:00 ERROR {DEAD}", f"2026-11-21 13:00:00 ERROR {OOM}")) == ("VLLM007", "bug")


def test_what_the_run_outlived_is_no_cause() -> None:
    assert _reported(_of(OOM + STEPS)) is None
    assert _reported(_of(STEPS + OOM)) == ("CUDA001", "oom")
    assert _reported(_of(OOM + STEPS + FULL)) == ("OS001", "disk")


def test_steps_of_other_ranks_close_before_an_end_forgive_nothing() -> None:
    assert _reported(_of(OOM + STEPS + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n")) == (
        "CUDA001",
        "oom",
    )


def test_lines_at_info_level_and_advice_are_no_symptoms() -> None:
    assert _reported(_of(f"2026-11-21 10:00:00 INFO caught and retried: {FULL}")) is None
    assert _reported(_of(f"this can cause errors like {FULL}")) is None


def test_the_code_in_a_traceback_is_no_symptom() -> None:
    code = '    raise X("No space left on device")'
    log = f'Traceback (most recent call last):\n  File "a.py", line 3, in f\n{code}\nX: 1\n'
    assert _reported(_of(log)) == (UNKNOWN, "unknown")


def test_a_bare_assertion_is_known_by_its_code() -> None:
    log = (
        'Traceback (most recent call last):\n  File "a.py", line 3, in f\n'
        "    assert token_prefix_with_turn[: len(token_prefix)] == token_prefix\n"
        "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\nAssertionError\n"
    )
    assert _reported(_of(log)) == ("PRL010", "config")


def test_an_error_that_no_process_knows_is_reported_with_its_line() -> None:
    cause = _of("2026-11-21 10:00:00 INFO fine\n2026-11-21 10:00:01 ERROR the moon is full\n").cause
    assert cause is not None
    assert (cause.id, cause.cause_class, cause.line, cause.text) == (UNKNOWN, "unknown", 2, "the moon is full")


def test_an_exception_on_the_way_out_is_no_cause() -> None:
    log = (
        'Exception ignored in: <function A.__del__>\nTraceback (most recent call last):\n  File "a.py", line 3\nE: 1\n'
    )
    assert _reported(_of(STEPS + log)) is None


def test_a_line_of_ten_megabytes_is_cut_and_the_next_is_read() -> None:
    long = b"x" * 10_000_000
    found = judge([scan([long, b"\n", OOM.encode()], "a.log")])
    assert found.cause is not None
    assert (found.cause.id, found.cause.line) == ("CUDA001", 2)
    assert judge([scan([OOM.rstrip().encode() + long], "a.log")]).cause is not None


# --- what must always hold ----------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        *(
            b"\n",
            b"\r",
            b"\x1b[31m",
            b"\x00",
            b"\xff\xfe",
            b"{",
            b'{"message": "',
            b'"}',
            b"[rank0]: ",
            b"ValueError: x\n",
        ),
        *(b"Traceback (most recent call last):\n", b'  File "a.py", line 3, in f\n', b"step 12 | loss: nan\n"),
        *(b"(EngineCore pid=1) ERROR 11-21 07:44:41 [a.py:1] ", b"2026-13-99 99:99:99 ", b"07:10:00 | ERROR | "),
        *(b"Feb 30 10:00:00 h kernel: ", b"[99999.123456] ", b"E1399 10:00:00.1 1 a:1] "),
        *(OOM.encode(), DEAD.encode(), FULL.encode(), STEPS.encode()),
        b"  + Exception Group Traceback (most recent call last):\n",
        b"During handling of the above exception, another exception occurred:\n",
    ]
)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.one_of(PIECES, st.binary(max_size=40)), max_size=60), st.one_of(st.none(), st.floats(0, 4e9)))
def test_no_bytes_trip_the_reader(pieces: list[bytes], changed_s: float | None) -> None:
    found = judge([scan(pieces, "a.log", changed_s), scan([b"".join(pieces)], "b.log")])
    lines = b"".join(pieces).count(b"\n") + 1
    if found.cause is not None:
        assert 1 <= found.cause.line <= lines


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=60), max_size=30))
def test_lines_before_the_cause_do_not_hide_it(lines: list[str]) -> None:
    harmless = [line for line in lines if judge([scan([line.encode()], "a.log")]).cause is None]
    before = "".join(line.replace("\n", " ") + "\n" for line in harmless if "\x1b" not in line and "{" not in line)
    assert _reported(_of(before + OOM)) == ("CUDA001", "oom")
