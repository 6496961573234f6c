"""Logs of the shapes that strangers have: the cause is found in each, and no text is taken for a failure."""

from __future__ import annotations

import codecs

import pytest

from prime_train.diagnose.cause import Cause, judge
from prime_train.diagnose.log_scanner import scan

HEADER = "Traceback (most recent call last):\n"
FRAMES = (
    '  File "/app/train.py", line 12, in <module>\n    main()\n  File "/app/train.py", line 7, in main\n    run()\n'
)
LIBRARY = '  File "/venv/lib/python3.11/site-packages/x/y.py", line 9, in call\n    raise error\n'
STEPS = "".join(f"step {step} | loss: 2.3 | 1.2 s\n" for step in range(3))
BY_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"


def traceback(error: str, frames: str = FRAMES) -> str:
    return f"{HEADER}{frames}{error}\n"


def cause(log: str | bytes) -> Cause:
    found = judge([scan([log.encode() if isinstance(log, str) else log], "a.log", 1.79e9)]).cause
    assert found is not None
    return found


def is_silent(log: str) -> bool:
    return judge([scan([log.encode()], "a.log", 1.79e9)]).cause is None


# --- who speaks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "so n must be divisible by 7, and 49 is a multiple of it",
        "INFO 11-21 07:40:38 [config.py:12] trust_remote_code=True",
        "engine args: {'model': '/m', 'trust_remote_code=True': 1, 'port': 8000}",
        "WARNING 11-21 07:40:38 [__init__.py:12] No module named 'vllm._version'",
        "node-1:41200:41200 [0] NCCL INFO cudart: libcudart.so.13: cannot open shared object file",
        "+ ssh -o ConnectTimeout=10 node7 nvidia-smi",
        "  on_timeout = ReadTimeout",
        '    raise ValueError("No space left on device")',
        "> the answer is that CUDA error: device-side assert triggered means an index",
        "assistant: you may see OSError: [Errno 28] No space left on device",
    ],
)
def test_text_that_no_program_reports_as_an_error_is_no_cause(line: str) -> None:
    assert is_silent(f"{line}\n{STEPS}{line}\n" + "epoch 1 of 3\n" * 200)


@pytest.mark.parametrize(
    ("line", "identifier"),
    [
        ("ValueError: global batch 100 is not divisible by 3", "TORCH023"),
        ("2026-11-21 10:00:00 ERROR global batch 100 is not divisible by 3", "TORCH023"),
        ("ImportError: /x.so: undefined symbol: _ZN3c10", "CUDA014"),
        ("[1234.567890] Memory cgroup out of memory: Killed process 42 (python)", "OS004"),
        ("srun: error: node7: task 3: Out Of Memory", "OS016"),
        ("run.sh: line 4: 99 Killed                  python train.py", "OS016"),
        ("zstd: error 70 : Write error : cannot write block : No space left on device", "OS001"),
    ],
)
def test_the_same_words_count_where_a_program_reports_an_error(line: str, identifier: str) -> None:
    assert cause(f"{STEPS}{line}\n").id == identifier


LOST_PEER = "RuntimeError: [/x/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:5"


@pytest.mark.parametrize(
    ("log", "retry"),
    [
        (traceback("ModuleNotFoundError: No module named 'a'"), "no"),
        ("ERROR: ModuleNotFoundError: No module named 'a'\n", "yes"),
        (traceback("ModuleNotFoundError: No module named 'a'") + "step 4 | loss: 2.3\n", "yes"),
        (traceback("ModuleNotFoundError: No module named 'a'") + "x\n" * 500, "yes"),
        (traceback("ModuleNotFoundError: No module named 'a'") + traceback("ScoreTooLow: 1"), "yes"),
        (traceback("ModuleNotFoundError: No module named 'a'") + traceback(LOST_PEER), "no"),  # of another rank
        (traceback(LOST_PEER), "yes"),
    ],
)
def test_a_signature_closes_a_run_only_in_the_traceback_that_ended_the_log(log: str, retry: str) -> None:
    assert cause(STEPS + log).retry == retry


# --- how the log ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "is_healthy"),
    [
        ("Training finished", True),
        ("2026-11-21 10:00:00,000 - train - INFO - finished: 15 steps, 0 errors", True),
        ("job 12 exited with code 0", True),
        ("step 812 | loss: 2.3 | 1.2 s", False),
        ("training not finished", False),
        ("Finished:      Sat, 14 Mar 2026 03:40:51 +0000", False),
        ("", False),
    ],
)
def test_a_log_is_healthy_only_if_it_reports_a_good_end(last: str, is_healthy: bool) -> None:
    found = judge([scan([f"{STEPS}{last}\n".encode()], "a.log", 1.79e9)])
    assert (found.cause, found.is_healthy) == (None, is_healthy)
    assert [end.file for end in found.ends] == ([] if is_healthy else ["a.log"])


def test_the_end_of_a_log_names_its_last_line() -> None:
    (end,) = judge([scan([b"one\n\x1b[1mtwo\x1b[0m\n\n"], "a.log")]).ends
    assert (end.line, end.text) == (2, "two")


# --- prefixes and forms ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prefix",
    [
        "train-0 train ",
        "[node7:rank3] ",
        "rank=3 | ",
        "[1,3]<stderr>:",
        "[1,mpirank:1,algo-1]<stderr>:",
        "12: ",
        "trainer  | ",
        "[pod/trainer-0/pytorch] ",
        "2026-11-23T10:00:00.123456789Z stderr F ",
        "[0] ",
        "worker@10.0.0.7> ",
        "<34>1 2026-11-23T13:08:24.003Z host app 123 - - ",
    ],
)
def test_the_prefix_of_a_traceback_is_learned(prefix: str) -> None:
    log = "".join(f"{prefix}{line}\n" for line in traceback("zipimport.ZipImportError: bad").splitlines())
    found = cause(log)
    assert (found.text, found.line) == ("zipimport.ZipImportError: bad", 6)
    assert found.raised[1] == "/app/train.py:7 in main"


def test_the_seconds_and_line_numbers_of_kaggle_are_a_prefix() -> None:
    lines = traceback("IndexError: list index out of range").splitlines()
    found = cause("".join(f"{7 + at / 10:.1f}s\t{at}\t{line}\n" for at, line in enumerate(lines, 40)))
    assert (found.text, found.line, len(found.raised)) == ("IndexError: list index out of range", 6, 2)


@pytest.mark.parametrize(
    "error",
    [
        "socket.gaierror: strange name",
        "zmq.error.Again",
        "binascii.Error: Incorrect padding",
        "struct.error: unpack requires a buffer of 4 bytes",
        "__main__.main.<locals>.TooOdd: 3",
        "queue.Empty",
    ],
)
def test_any_dotted_name_after_frames_is_an_exception(error: str) -> None:
    assert cause(traceback(error)).text == error


def test_a_traceback_without_its_top_is_read() -> None:
    found = cause(FRAMES.partition("\n")[2] + "requests.exceptions.InvalidURL: no host\n" + "wandb: sync\n")
    assert (found.text, found.line) == ("requests.exceptions.InvalidURL: no host", 4)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_utf_16_is_read_however_it_is_cut(encoding: str, size: int) -> None:
    mark = codecs.BOM_UTF16_LE if encoding == "utf-16-le" else codecs.BOM_UTF16_BE
    data = mark + (STEPS + traceback("KeyError: 'x'")).replace("\n", "\r\n").encode(encoding)
    found = judge([scan([data[at : at + size] for at in range(0, len(data), size)], "a.log")]).cause
    assert found is not None
    assert (found.text, found.line) == ("KeyError: 'x'", 9)


def test_a_logfmt_line_has_the_level_it_names() -> None:
    assert cause('time=2026-11-23T10:00:00Z level=error msg="no space left on device" pod=a\n').id == "OS001"
    assert is_silent('level=info msg="retried: no space left on device"\n')


def test_a_traceback_at_the_exit_of_python_is_no_cause() -> None:
    ignored = "Exception ignored in: <function A.__del__ at 0x7>\n" + traceback("AttributeError: x")
    assert is_silent(f"{STEPS}Training completed\n{ignored}")


@pytest.mark.parametrize(
    ("line", "identifier"),
    [
        ("Aborted (core dumped)", "OS028"),
        ('Exception in thread "main" java.lang.OutOfMemoryError: Java heap space', "CUDA026"),
        ("python: can't open file '/app/trian.py': [Errno 2] No such file or directory", "PY009"),
        ("panic: runtime error: invalid memory address", "UNKNOWN"),
        ("thread 'main' panicked at src/main.rs:4:5:", "UNKNOWN"),
        ("2026-11-23 10:00:00.123456: F core/platform/env.cc:388] Check failed: -1 != path_length", "UNKNOWN"),
    ],
)
def test_other_languages_report_errors_in_their_own_forms(line: str, identifier: str) -> None:
    assert cause(f"{STEPS}{line}\n").id == identifier


# --- what was handled, and several attempts ----------------------------------------------------------------


def test_a_traceback_after_which_the_log_goes_on_is_handled() -> None:
    on = "".join(f"2026-11-23 10:00:0{at} INFO uploading again\n" for at in range(4))
    log = f"2026-11-23 10:00:00 WARNING upload failed\n{traceback('TypeError: x')}{on}{traceback('KeyError: 1')}"
    assert cause(log).text == "KeyError: 1"


@pytest.mark.parametrize(
    "banner", ["=== attempt {} ===", "[launcher] starting attempt {} of 3", "---- Restarting training (try {}) ----"]
)
def test_the_last_attempt_is_judged(banner: str) -> None:
    first = f"{banner.format(1)}\n{traceback('ValueError: one')}"
    assert cause(f"{first}{banner.format(2)}\n{traceback('KeyError: 2')}").text == "KeyError: 2"
    assert is_silent(f"{first}{banner.format(2)}\nloading\n")


def test_the_first_line_again_starts_another_attempt() -> None:
    first = "2026-11-23 10:00:0{} my-trainer 1.2 on node7\n"
    log = first.format(1) + traceback("ValueError: one") + first.format(2) + traceback("KeyError: 2")
    assert cause(log).text == "KeyError: 2"


def test_an_attempt_that_only_suffers_from_the_one_before_is_not_judged_alone() -> None:
    lost = "RuntimeError: [a/gloo/transport/tcp/pair.cc:525] Connection closed by peer [127.0.0.1]:43210"
    assert cause(f"=== attempt 1\n{traceback('KeyError: 1')}=== attempt 2\n{traceback(lost)}").text == "KeyError: 1"


@pytest.mark.parametrize(
    ("line", "cause_class"),
    [
        ("KeyboardInterrupt", "signal"),
        ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 42 got signal: 15", "signal"),
        ("slurmstepd: error: *** JOB 42 ON node7 CANCELLED AT 2026-11-21T07:46:34 ***", "signal"),
        ("slurmstepd: error: *** JOB 42 ON node7 CANCELLED AT 2026-11-21T07:46:34 DUE TO TIME LIMIT ***", "signal"),
        ("slurmstepd: error: *** JOB 42 ON node7 CANCELLED AT 2026-11-21T07:46:34 DUE TO PREEMPTION ***", "signal"),
        ("Hangup", "signal"),
        ("Terminated", "signal"),
    ],
)
def test_an_end_by_a_person_or_a_signal_is_named_so(line: str, cause_class: str) -> None:
    assert cause(f"{STEPS}{line}\n").cause_class == cause_class


# --- chains --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "identifier"),
    [
        ("requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/x", "HF014"),
        ("requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://huggingface.co/x", "HF015"),
        (
            "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://huggingface.co/x",
            "HF013",
        ),
        ("httpx.HTTPStatusError: Client error '404 Not Found' for url 'https://huggingface.co/x'", "HF015"),
    ],
)
def test_answers_of_the_hub_are_reported_apart_below_the_same_error(error: str, identifier: str) -> None:
    last = "OSError: We couldn't connect to 'https://huggingface.co' to load the files"
    found = cause(traceback(error, LIBRARY) + BY_CAUSE + traceback(last))
    assert (found.id, found.line) == (identifier, 4)


@pytest.mark.parametrize(
    ("outer", "before"),
    [
        (
            "torch.multiprocessing.spawn.ProcessRaisedException: ",
            "\n-- Process 1 terminated with the following error:\n",
        ),
        ("KeyError: Caught KeyError in DataLoader worker process 0.", "Original "),
        ("ray.exceptions.RayTaskError(KeyError): ray::f() (pid=1, ip=10.0.0.1)", ""),
        ("multiprocessing.pool.RemoteTraceback: ", '"""\n'),
    ],
)
def test_an_exception_that_carries_another_gives_the_one_of_the_worker(outer: str, before: str) -> None:
    found = cause(traceback(outer) + before + traceback("rewards.ScoreTooLow: 0.1", FRAMES.replace("train", "rewards")))
    assert (found.text, found.raised[1]) == ("rewards.ScoreTooLow: 0.1", "/app/rewards.py:7 in main")


def test_memory_that_nccl_did_not_get_is_memory() -> None:
    assert cause("node-1:1:2 [0] NCCL WARN Cuda failure 2 'out of memory'\n").cause_class == "oom"
    error = "torch.distributed.DistBackendError: NCCL error in: a.cpp:3690, unhandled cuda error"
    rest = "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'\n"
    assert cause(traceback(error) + rest).cause_class == "oom"


def test_the_code_of_a_raise_is_no_message() -> None:
    code = '    raise CustomStop("No space left on device")\n'
    found = cause(f'{HEADER}  File "/app/a.py", line 3, in f\n{code}CustomStop\n')
    assert (found.id, found.text) == ("UNKNOWN", "CustomStop")


# --- the class of an unknown exception -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "cause_class"),
    [
        ("TypeError: unsupported operand", "bug"),
        ("KeyError: 'labels'", "bug"),
        ("ValueError: batch must be positive", "config"),
        ("omegaconf.errors.ConfigTypeError: x", "config"),
        ("pandas.errors.EmptyDataError: No columns to parse from file", "data"),
        ("PIL.Image.DecompressionBombError: x", "data"),
        ("aiohttp.client_exceptions.ServerDisconnectedError", "network"),
        ("google.auth.exceptions.RefreshError: invalid credentials", "auth"),
        ("rewards.ScoreTooLow: 0.1", "unknown"),
    ],
)
def test_the_type_and_module_of_an_unknown_exception_give_its_class(error: str, cause_class: str) -> None:
    found = cause(traceback(error))
    assert (found.cause_class, found.retry) == (cause_class, "yes")


# --- the order of logs --------------------------------------------------------------------------------------------


def test_files_of_one_time_are_reported_as_unordered_for_any_their_order() -> None:
    scans = [scan([f"{error}: x\n".encode()], name, 1.79e9) for name, error in (("a", "KeyError"), ("b", "TypeError"))]
    one, other = judge(scans), judge(scans[::-1])
    assert one == other
    for found in (one, other):
        assert found.cause is not None
        assert (found.cause.file, [seen.file for seen in found.unordered]) in (("a", ["b"]), ("a", []))


# --- names that were given too often -------------------------------------------------------------------

CREATION = "The actor died because of an error raised in its creation task, ray::Worker.__init__() (pid=7)"
IMPORT = "ImportError: cannot import name 'step' from"


@pytest.mark.parametrize(
    ("error", "identifier"),
    [
        ("wandb.errors.CommError: Could not find run <Run a/b/c (not found)>", "WB004"),
        ("wandb.errors.CommError: project not found", "WB003"),
        ("wandb.errors.CommError: network error (ConnectTimeout)", "WB002"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ", "TORCH024"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Aborted. ", "OS017"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated. ", "SIG001"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Segmentation fault. ", "OS011"),
        ("RuntimeError: DataLoader worker (pid(s) 7, 8) exited unexpectedly", "TORCH032"),
        (f"{IMPORT} 'transformers.loops' (/venv/lib/python3.11/site-packages/transformers/loops.py)", "PY002"),
        (f"{IMPORT} 'loops' (/home/me/loops.py)", "UNKNOWN"),
        (f"{IMPORT} partially initialized module 'loops' (most likely due to a circular import)", "UNKNOWN"),
        ("RuntimeError: server exited unexpectedly", "UNKNOWN"),
        ("RuntimeError: train-dispatcher exited unexpectedly", "PRL009"),
        ("RuntimeError: unable to open shared memory object </torch_7_1> in mode: Too many open files (24)", "OS003"),
        ("RuntimeError: [enforce fail at inline_container.cc:471] . unexpected pos 704 vs 598", "OS029"),
        (f"ray.exceptions.ActorDiedError: {CREATION}", "RAY007"),
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.", "RAY006"),
        ("ValueError: Invalid backend: 'flash3'", "UNKNOWN"),
        ("AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'", "VLLM039"),
        ("torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0])", "TORCH033"),
    ],
)
def test_a_traceback_gets_the_name_of_its_own_failure(error: str, identifier: str) -> None:
    assert cause(traceback(error)).id == identifier


@pytest.mark.parametrize(
    ("line", "identifier"),
    [
        ("python: src/queue.c:41: push: Assertion `queue->head != NULL' failed.", "OS017"),
        ("/a/Loss.cu:240: nll_loss: block: [0,0,0], thread: [17,0,0] Assertion `t < n_classes` failed.", "CUDA005"),
        (f"/venv{'/include' * 12}/gemm_test.h:6:10: fatal error: cuda_profiler_api.h: No such file", "CUDA027"),
        ("Check failed: error == cudaSuccess (77 vs. 0)  an illegal memory access was encountered", "CUDA004"),
        ('docker: Error response from daemon: could not select device driver "" with: [[gpu]].', "DRV010"),
        ("Job 7 ended in the state FAILED_CONTROLLER", "SKY005"),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", "UNKNOWN"),
        ("/bin/sh: 1: scontrol: not found", "PY010"),
        ("command terminated with exit code 137", "OS020"),
        ("*** SIGABRT received by PID 7 (TID 7) on cpu 25 from PID 7; stack trace: ***", "OS017"),
        ("Could not append to config. An item is already at 'polynomial'.", "PY019"),
        (" iteration 5426/ 250000 | loss scale: 1.0 | grad norm: nan | number of nan iterations: 0 |", "TORCH009"),
    ],
)
def test_a_line_gets_the_name_of_its_own_failure(line: str, identifier: str) -> None:
    assert cause(f"{line}\n").id == identifier


def test_mpi_is_not_taken_for_prime_rl() -> None:
    assert is_silent("Fatal error in MPI_Init: Other MPI error\n")


def test_the_reason_on_the_line_after_a_colon_belongs_to_the_exception() -> None:
    error = "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nRuntimeError: "
    assert cause(traceback(f"{error}Cannot find a working triton installation.")).id == "CUDA030"
    assert cause(traceback(f"{error}something else")).id == "TORCH014"


def test_a_missing_header_explains_the_failed_build() -> None:
    header = f"/venv{'/include' * 12}/gemm_test.h:6:10: fatal error: cuda_profiler_api.h: No such file or directory\n"
    build = traceback("subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.")
    built = traceback("RuntimeError: Error building extension 'fused'")
    assert cause(header + build).id == cause(header + built).id == "CUDA027"
    assert cause(built).id == "CUDA031"


WAITING = "10:00:10 WARNING Inference server was not reached after 10 seconds on http://localhost:8000\n"


def test_a_warning_is_no_cause_where_the_work_went_on() -> None:
    assert cause(WAITING).id == "PRL002"
    assert is_silent(WAITING + "10:00:20 INFO the server is ready\n10:00:21 INFO sampling\n10:00:22 INFO training\n")
    assert cause(WAITING + "10:00:11 INFO waiting\n" * 3 + WAITING).id == "PRL002"


def test_a_warning_before_the_end_of_a_process_counts_although_lines_follow_it() -> None:
    log = WAITING + "10:00:20 INFO still here\n" * 3 + "10:00:30 ERROR EngineDeadError: the engine died\n"
    assert cause(log).id == "PRL002"


def test_the_header_of_a_stack_trace_starts_no_attempt() -> None:
    log = "Check failed: status == OK (Unavailable: driver not open)\n*** Begin stack trace ***\n  run()\n"
    assert (cause(log).id, cause(log).line) == ("UNKNOWN", 1)


def test_pythons_advice_on_starting_processes_is_no_good_end() -> None:
    log = (
        "RuntimeError:\n        An attempt has been made to start a new process before the\n"
        "        current process has finished its bootstrapping phase.\n\n                freeze_support()\n"
    )
    assert cause(log).id == "PY012"


def test_a_time_limit_ends_a_job_although_a_step_is_still_reported() -> None:
    limit = "slurmstepd: error: *** STEP 7.0 ON node7 CANCELLED AT 2026-11-21T07:46:34 DUE TO TIME LIMIT ***\n"
    later = "".join(f"step {step} | loss: 2.2 | 1.2 s\n" for step in (3, 4))
    assert cause(STEPS + limit + later).id == "SLURM001"


def test_the_level_of_a_logger_is_no_exception() -> None:
    frames = '  File "a.py", line 3, in f\nSTATUS: starting\n    if 0 <= int(text):\nValueError: invalid literal: x\n'
    assert cause(HEADER + frames).text == "ValueError: invalid literal: x"
