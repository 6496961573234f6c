"""Runs pytest, and runs a failed test of real processes again, alone: `python tests/rerun.py LOGS ARGUMENTS`.

A test of real processes may fail on a busy machine without a fault of the code. It runs again when all others have
ended, with the other tests of its file, because a scene goes on from the one before. If all of them pass then, the exit
code is 0, and the last lines name it as `flaky: TEST`. What fails twice fails. The output of both runs is kept in the
folder LOGS, and the names of flaky tests in its file `flaky`. Only tests that start processes are run by this program:
a failed test of a function has no such excuse.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

MOST_AGAIN = 5  # with more failed tests the code is at fault, and not the machine
_TESTS_FAILED = 1  # pytest's exit code


def main(arguments: Sequence[str]) -> int:
    logs, options = Path(arguments[0]), list(arguments[1:])
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    code = _run_pytest([*options, "-o", f"cache_dir={logs / 'cache'}"], logs / "first.log")
    if code != _TESTS_FAILED:
        return code
    failed = read_failed(logs / "cache")
    if not 0 < len(failed) <= MOST_AGAIN:
        return code
    print(f"==> {len(failed)} failed, and run again alone", flush=True)
    files = sorted({test.partition("::")[0] for test in failed})
    again = ["-q", "-n", "0", "-p", "no:cacheprovider", *_find_marker(options), *files]
    code = _run_pytest(again, logs / "again.log")
    if code == 0:
        named = "".join(f"flaky: {test}\n" for test in failed)
        (logs / "flaky").write_text(named, encoding="utf-8")
        print(named, end="", flush=True)
    return code


def read_failed(cache: Path) -> list[str]:
    """The ids of the failed tests of the run with this cache folder, in the order of their names."""
    found = json.loads((cache / "v" / "cache" / "lastfailed").read_text(encoding="utf-8"))
    # pytest-xdist adds the group of a test, which is its file (tests/conftest.py).
    return sorted(test.removesuffix("@" + test.partition("::")[0]) for test in found)


def _find_marker(options: Sequence[str]) -> list[str]:
    """The option -m with its value; without it, pytest leaves out the tests that need another environment."""
    return list(options[options.index("-m") :][:2]) if "-m" in options else []


def _run_pytest(options: Sequence[str], log: Path) -> int:
    """The exit code of pytest, whose output is shown and kept."""
    with log.open("wb") as kept:
        command = [sys.executable, "-m", "pytest", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
            assert child.stdout is not None
            _copy(child.stdout, kept)
    return child.returncode


def _copy(source: IO[bytes], kept: IO[bytes]) -> None:
    while chunk := source.read1(65536):  # type: ignore[attr-defined]  # of a BufferedReader
        kept.write(chunk)
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
