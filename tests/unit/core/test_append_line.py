"""A line that a full disk takes in part is not left there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from prime_train.core.rundir import append_line

_PROGRAM = """
import resource, signal, sys
from pathlib import Path
from prime_train.core.rundir import append_line
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path, refused = Path(sys.argv[1]), 0
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
for _ in range(5):
    try:
        append_line(path, "x" * 29)
    except OSError:
        refused += 1
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
append_line(path, "end")
print(refused)
"""


def test_a_line_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    done = subprocess.run([sys.executable, "-c", _PROGRAM, path], capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"
    assert path.read_text() == ("x" * 29 + "\n") * 3 + "end\n"


def test_a_link_in_its_place_is_set_aside(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine\n")
    (tmp_path / "lines").symlink_to(other)
    append_line(tmp_path / "lines", "a")
    assert other.read_text() == "mine\n"
    assert (tmp_path / "lines").read_text() == "a\n"
    assert (tmp_path / "lines").stat().st_mode & 0o077 == 0
