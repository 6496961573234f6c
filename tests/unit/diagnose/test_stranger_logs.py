"""Kinds of logs in which a failure, or its absence, was once told wrongly; each log is written for this test."""

from __future__ import annotations

import codecs
import json

import pytest

from prime_train.diagnose.cause import Cause, judge
from prime_train.diagnose.log_scanner import scan

HEADER = 'Traceback (most recent call last):\n  File "/w/fit.py", line 31, in <module>\n    fit()\n'
STEPS = "".join(f"step {step} | loss: 2.3 | 1.2 s\n" for step in range(1, 30))
BAR = " 61%|######1   | 610/1000 [08:51<05:40,  1.15it/s]"


def cause(log: str | bytes) -> Cause:
    found = judge([scan([log.encode() if isinstance(log, str) else log], "a.log", 1.79e9)]).cause
    assert found is not None
    return found


def is_silent(log: str) -> bool:
    return judge([scan([log.encode()], "a.log", 1.79e9)]).cause is None


# --- a level that says nothing -----------------------------------------------------------------------


def test_a_level_that_each_line_has_is_no_error() -> None:
    lines = ["==== model ====", "loading 4 shards", *f"{HEADER}KeyError: 'rope'".splitlines(), "bye"]
    log = "".join(f"ERROR 2026-11-21T10:00:0{at}.5Z [pod: fit-0] {line}\n" for at, line in enumerate(lines))
    assert (cause(log).text, cause(log).line) == ("KeyError: 'rope'", 6)
    healthy = "".join(f"ERROR 2026-11-21T10:00:0{at}.5Z [pod: fit-0] {STEPS.splitlines()[at]}\n" for at in range(9))
    assert is_silent(healthy)


def test_the_payload_of_cloud_logging_is_read() -> None:
    lines = [{"severity": "INFO", "textPayload": "loading"}, {"severity": "ERROR", "jsonPayload": {"message": "full"}}]
    log = "".join(f"{json.dumps(line)}\n" for line in lines)
    assert (cause(log).text, cause(log).line) == ("full", 2)


# --- a stop, and what follows from it ------------------------------------------------------------------


@pytest.mark.parametrize(
    "stop", ["Terminated", "KeyboardInterrupt", "Received SIGTERM: 15", "run.sh: line 3: 77 Terminated  python fit.py"]
)
@pytest.mark.parametrize(
    "after",
    [
        f"{HEADER}EOFError\n",
        f"{HEADER}_pickle.UnpicklingError: pickle data was truncated\n",
        f"{HEADER}ConnectionResetError: [Errno 104] Connection reset by peer\n",
        "[rank0]:[E1 ProcessGroupNCCL.cpp:5] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=9, NumelOut=9)\n",
        "terminate called after throwing an instance of 'c10::DistBackendError'\n",
    ],
)
def test_a_stop_is_named_and_not_what_follows_from_it(stop: str, after: str) -> None:
    found = cause(f"{STEPS}{stop}\n{after}")
    assert (found.cause_class, found.line) == ("signal", 30)


def test_a_failure_before_a_stop_or_after_more_work_is_its_own() -> None:
    assert cause(f"{STEPS}{HEADER}KeyError: 'x'\nTerminated\n").text == "KeyError: 'x'"
    assert cause(f"Terminated\n{STEPS}{HEADER}KeyError: 'x'\n").text == "KeyError: 'x'"


def test_a_stop_does_not_explain_a_full_disk() -> None:
    assert cause(f"{STEPS}Terminated\n{HEADER}OSError: [Errno 28] No space left on device\n").cause_class == "disk"


def test_the_reason_of_a_scheduler_explains_the_signal_before_it() -> None:
    limit = "slurmstepd: error: *** JOB 42 ON n1 CANCELLED AT 2026-11-21T07:46:34 DUE TO TIME LIMIT ***"
    assert cause(f"{STEPS}[rank: 0] Received SIGTERM: 15\n{limit}\n").id == "SLURM001"


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-21 14:19:39 - fit - INFO - Run aborted by user",
        "2026-11-21 14:19:39 - Keyboard interruption. Leaving the loop",
        "\tvia condor_rm (by user ann)",
        "INFO Received SIGTERM, saving and leaving",
    ],
)
def test_a_stop_that_a_program_only_mentions_is_known(line: str) -> None:
    assert cause(f"{STEPS}{line}\n").cause_class == "signal"


def test_a_server_that_is_asked_to_end_has_no_failure() -> None:
    assert is_silent("INFO:     Started server process [7]\nINFO Received SIGTERM\nINFO:     Shutting down\n"
                     "INFO:     Application shutdown complete.\n")  # fmt: skip


# --- messages behind a bar, below a heading, broken by a terminal ---------------------------------------


@pytest.mark.parametrize(
    ("message", "identifier"),
    [
        ("slurmstepd: error: *** JOB 42 ON n1 CANCELLED AT 2026-11-21T07:46:34 DUE TO TIME LIMIT ***", "SLURM001"),
        ("Killed", "OS016"),
        ("OSError: [Errno 28] No space left on device", "OS001"),
    ],
)
def test_a_message_behind_a_progress_bar_is_seen(message: str, identifier: str) -> None:
    found = cause(f"{STEPS}\r{BAR}{message}\n")
    assert (found.id, found.line, found.text) == (identifier, 30, message)


def test_the_words_below_a_heading_belong_to_it() -> None:
    log = "10:00:00 - fit - ERROR - No model:\nFooProcessor requires the Bar library but it was not found\n"
    found = cause(log)
    assert (found.line, found.cause_class) == (1, "env")
    assert "requires the Bar library" in found.what or "requires the Bar library" in found.text
    assert cause("10:00:00 - fit - ERROR - It failed:\n10:00:01 - fit - INFO - leaving\n").text == "It failed:"


def test_a_line_that_a_terminal_broke_is_put_together() -> None:
    lines = [
        *HEADER.splitlines(),
        "RuntimeError: Cannot find a working triton inst",
        "allation. It is missing or too old.",
    ]
    lines[1] = '  File "C:\\w\\'.ljust(len(lines[3]), "x")
    data = codecs.BOM_UTF16_LE + "\r\n".join([*lines, ""]).encode("utf-16-le")
    assert (cause(data).id, cause(data).line) == ("CUDA030", 4)


# --- several runs in one file -----------------------------------------------------------------------------


def test_the_last_job_in_a_file_is_judged() -> None:
    log = (
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-20T01:22:18 ***\nreading\n"
        f"{HEADER}ValueError: odd rows\n2026-11-21 02:50:00 INFO reading again\n"
        "slurmstepd: error: *** JOB 9 ON n6 CANCELLED AT 2026-11-21T02:53:05 ***\n"
    )
    assert (cause(log).cause_class, cause(log).line) == ("signal", 8)


def test_an_error_of_a_logger_before_the_last_run_is_over() -> None:
    later = "".join(f"2026-11-21 13:34:2{at} - fit - INFO - stage {at}\n" for at in range(4))
    log = f"2026-11-21 13:30:00 - fit - ERROR - Bar requires the Foo library but it was not found\n{later}"
    assert cause(f"{log}2026-11-21 14:00:00 - fit - INFO - Training interrupted by user\n").line == 6


# --- what was handled ----------------------------------------------------------------------------------------


def _logged(error: str, number: int) -> str:
    lines = f"ERROR:2026-11-21 10:00:0{number},123:{HEADER}{error}".splitlines()
    return "".join(f"(Worker pid=7) {line}\n" for line in lines)


def test_an_error_that_the_run_outlives_again_and_again_is_handled() -> None:
    rounds = "".join(
        f"{_logged('TypeError: no answer', step)}(T pid=9) step:{step} - loss:0.1\n" for step in range(1, 7)
    )
    assert is_silent(rounds)
    assert cause(f"{rounds}{HEADER}KeyError: 'last'\n").text == "KeyError: 'last'"


def test_a_request_that_a_server_refuses_is_no_failure() -> None:
    place = "ERROR 11-21 10:00:00 [serving.py:203] "
    error = "ValueError: This model's maximum context length is 2048 tokens. However, you requested 5418 tokens"
    refused = "".join(f"{place}{line}\n" for line in f"Error in preprocessing\n{HEADER}{error}".splitlines())
    answer = 'INFO:     10.0.0.1:2 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request\n'
    assert is_silent(f"{refused}{answer}INFO:     Shutting down\n")
    assert not is_silent(refused)


def test_a_folder_that_slurm_replaced_is_a_notice() -> None:
    found = judge(
        [scan([b"slurmstepd: error: couldn't chdir to `/w': No such file or directory: going to /tmp instead\n"], "a")]
    )
    assert found.cause is None
    assert [seen.id for seen in found.notices] == ["SLURM004"]


# --- repairs that fit ------------------------------------------------------------------------------------------

ASKED = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. GPU 0 has a total capacity of 79.11 GiB"


def test_one_request_larger_than_the_gpu_has_another_cause() -> None:
    large = cause(f"{STEPS}{HEADER}{ASKED.format('96.00')} of which 70 GiB is free.\n")
    small = cause(f"{STEPS}{HEADER}{ASKED.format('2.00')} of which 1 GiB is free.\n")
    assert (large.id, small.id) == ("CUDA032", "CUDA001")
    assert "96.00 GiB" in large.what
    assert "79.11 GiB" in large.what


def test_memory_that_lacks_while_loading_has_another_repair() -> None:
    frame = '  File "/v/site-packages/transformers/modeling_utils.py", line 9, in from_pretrained\n'
    loading, training = cause(f"{HEADER}{frame}{ASKED.format('2.00')}\n"), cause(f"{HEADER}{ASKED.format('2.00')}\n")
    assert (loading.id, training.id) == ("CUDA001", "CUDA001")
    assert "load it sharded" in loading.fix
    assert "micro-batch" in training.fix


def test_a_file_that_lacks_in_a_checkpoint_makes_it_incomplete() -> None:
    found = cause(f"{HEADER}FileNotFoundError: [Errno 2] No such file or directory: '/o/checkpoint-40/scheduler.pt'\n")
    assert found.id == "TORCH034"
    assert "/o/checkpoint-40" in found.fix


def test_a_refused_request_explains_a_tokenizer_that_cannot_be_loaded() -> None:
    asked = '10:00:00 - DEBUG - https://huggingface.co:443 "HEAD /a/b/resolve/main/tokenizer.json HTTP/1.1" {} 0\n'
    error = "10:00:01 - ERROR - Impossible de charger: Can't load tokenizer for 'a/b'. If you were trying to load it\n"
    refused, open_to_all = cause(asked.format(401) + error), cause(asked.format(404) + error)
    assert (refused.cause_class, refused.line) == ("auth", 2)
    assert open_to_all.cause_class == "config"
    assert is_silent(asked.format(401))


def test_the_place_that_a_compiler_names_is_the_cause() -> None:
    build = f"{HEADER}subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.\n"
    for line in (
        '/w/ops.cu(24): error: name followed by "::" must be a class',
        "ops.cpp:12:5: error: 'foo' was not declared",
    ):
        assert (cause(f"FAILED: ops.o\n{line}\n{build}").id, cause(f"FAILED: ops.o\n{line}\n{build}").line) == (
            "CUDA033",
            2,
        )


@pytest.mark.parametrize(
    ("error", "cause_class"),
    [
        ("mypkg.MissingLibrary: libfoo", "env"),
        ("RuntimeError: this kernel requires SM>=90", "env"),
        ("ImportError: DLL load failed while importing _x: The specified module could not be found.", "env"),
        ("RuntimeError: flash kernels are not available on this platform", "env"),
        ("AssertionError: bitsandbytes version 0.39 is too old", "env"),
        ("http.client.IncompleteRead: IncompleteRead(7 bytes read, 9 more expected)", "network"),
        ("PermissionError: [WinError 5] Access is denied: 'a'", "env"),
    ],
)
def test_the_environment_is_known_by_type_and_words(error: str, cause_class: str) -> None:
    assert cause(f"{STEPS}{HEADER}{error}\n").cause_class == cause_class


@pytest.mark.parametrize(
    ("line", "cause_class"),
    [
        ("mpirun noticed that process rank 3 with PID 77 on node n7 exited on signal 9 (Killed).", "oom"),
        ("mpirun noticed that process rank 3 with PID 77 on node n7 exited on signal 11 (Segmentation fault).", "bug"),
        ("2026-11-21 06:41:52.5: W tensorflow/core/op_kernel.cc:13] Aborted: Horovod has been shut down. This", "bug"),
        ("n1:6:7 [1] misc/socket.cc:58 NCCL WARN Net : Connection closed by remote peer n0<3>", "network"),
        (" F tensorflow/x.cc:34] Internal: failed call: CUDA_ERROR_ECC_UNCORRECTABLE", "hardware"),
        ("run.sh: line 9: 77 Bus error               (core dumped) python fit.py", "env"),
        ("[node-0:77 :0:99] Caught signal 7 (Bus error: nonexistent physical address)", "env"),
        ("[node-0:77 :0:99] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x8)", "bug"),
        ("Timeout (0:10:00)!", "hang"),
        ("ray.exceptions.RayActorError: The actor is dead because its worker process has died.", "signal"),
        ("[2026-11-21 10:00:00,1] [ERROR] [launch.py:321] ['python', 'fit.py'] exits with return code = -7", "env"),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGKILL", "oom"),
        ("WARN:watch:job used 512 GB and is over its memory limit", "oom"),
    ],
)  # fmt: skip
def test_ends_that_launchers_report_have_their_class(line: str, cause_class: str) -> None:
    assert cause(f"{STEPS}{line}\n").cause_class == cause_class
