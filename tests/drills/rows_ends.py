"""A trainer that ends: by a signal, an exception, or without a word; and what its log says of it."""

from __future__ import annotations

from tests.drills.drill import Row

_AGAIN = {"times": "always"}


def _states(name: str, found: str, text: str, says: str, exit_code: int) -> Row:
    """A log that tells the cause. It goes on where the policy tries again."""
    return Row(
        "causes in the log",
        name,
        found,
        (says,),
        exit_code,
        attempts=2 if exit_code == 0 else 1,
        victim="writes_line",
        options={"text": "{folder}/text"},
        files={"text": text},
    )


_TRACE = 'Traceback (most recent call last):\n  File "/app/train.py", line 41, in <module>\n    main()\n'

ROWS: tuple[Row, ...] = (
    Row("an end", "the trainer is killed", "signal", ("killed by signal 9 (SIGKILL)",), victim="killed"),
    Row(
        "an end",
        "another program sends it SIGTERM",
        "",
        ("another process stopped the trainer",),
        75,
        1,
        "asked_to_end",
    ),
    Row("an end", "it raises", "unknown", ("RuntimeError: boom at step 25", "victim.py"), victim="raises"),
    Row(
        "an end",
        "it reports the cause as an event, and its log has none",
        "unknown",
        ("ValueError: an odd sample",),
        victim="accounts",
    ),
    Row("an end", "a segmentation fault", "signal", ("(SIGSEGV)", "in string_at"), victim="segfault"),
    Row("an end", "native code calls abort", "signal", ("(SIGABRT)", "in aborts"), victim="aborts"),
    Row("an end", "a mapped file shrinks", "signal", ("(SIGBUS)", "/dev/shm"), victim="bus_error"),
    Row("an end", "exit code 0 before the last step", "unknown", ("exited with 0 at step 25 of 60",), victim="exits_0"),
    Row("an end", "exit code 1 without output", "unknown", ("exited with 1 at step 25 of 60",), victim="exits_1"),
    Row("an end", "it refuses its arguments", "config", ("exited with 2",), 5, 1, "refuses"),
    Row(
        "an end",
        "it reports a failure and does not end",
        "unknown",
        ("a thread is left",),
        victim="lingers",
        policy={"exit_grace_s": 2.0},
    ),
    Row(
        "an end",
        "attempt after attempt ends before a checkpoint",
        "unknown",
        ("3 attempts in a row without",),
        6,
        3,
        "raises",
        options={**_AGAIN, "at_step": "5"},
    ),
    Row("an end", "more memory than the limit allows", "oom", ("MemoryError",), 5, 1, "memory_limit"),
    Row("an end", "more open files than the limit allows", "env", ("Too many open files",), 5, 1, "too_many_files"),
    Row("an end", "a package is missing", "env", ("a_package_that_nobody_has",), 5, 1, "misses_a_package"),
    Row("an end", "the remote host refuses the connection", "network", ("Connection refused",), victim="finds_no_host"),
    Row("an end", "its port is taken", "env", ("Address already in use",), victim="finds_its_port_taken"),
    _states(
        "the GPU is out of memory",
        "oom",
        f"{_TRACE}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total "
        "capacity of 79.11 GiB of which 81.00 MiB is free.\n",
        "CUDA out of memory",
        5,
    ),
    _states(
        "the repository is gated",
        "auth",
        f"{_TRACE}OSError: You are trying to access a gated repo.\nMake sure to have access to it at "
        "https://huggingface.co/org/model.\n",
        "gated repo",
        5,
    ),
    _states(
        "the config is refused",
        "config",
        f"{_TRACE}pydantic_core._pydantic_core.ValidationError: 1 validation error for RLConfig\ntrainer.lr\n"
        "  Input should be a valid number [type=float_type, input_value='fast', input_type=str]\n",
        "trainer.lr: Input should be a valid number",
        5,
    ),
    _states(
        "an index is out of range on the GPU",
        "bug",
        f"{_TRACE}RuntimeError: CUDA error: device-side assert triggered\n",
        "device-side assert",
        5,
    ),
    _states(
        "a collective timed out",
        "network",
        "[rank1]:[E1121 09:12:44.000000000 ProcessGroupNCCL.cpp:685] [Rank 1] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=211, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 "
        "milliseconds before timing out.\n",
        "ALLREDUCE",
        0,
    ),
    _states(
        "the GPU had a memory error",
        "hardware",
        f"{_TRACE}torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n",
        "ECC",
        0,
    ),
    _states(
        "the cause comes before its consequences",
        "disk",
        f"{_TRACE}OSError: [Errno 28] No space left on device: '/scratch/shards/7'\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        f"{_TRACE}RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}\n",
        "No space left on device",
        5,
    ),
)
