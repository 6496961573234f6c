"""A planted flaky test is named and fails nothing; a planted broken one fails the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rerun import MOST_AGAIN

SCRIPT = Path(__file__).parents[1] / "rerun.py"
FLAKY = """
from pathlib import Path

def test_flaky():
    seen = Path(__file__).with_name("seen")
    if not seen.exists():
        seen.touch()
        assert False, "the first run"
"""
SCENES = """
from pathlib import Path

seen = Path(__file__).with_name("seen")

def test_scene_1():
    seen.write_text(seen.read_text() + "1" if seen.exists() else "1")

def test_scene_2():
    assert seen.read_text() == "11", "the first run"
"""
BROKEN = "def test_broken():\n    assert False, 'every run'\n"
SOUND = "def test_sound():\n    pass\n"


def run(project: Path, *options: str, ini: str = "[pytest]\n", **tests: str) -> tuple[int, list[str]]:
    """Exit code and output lines of the script for a project with these test files, by folder and name."""
    (project / "pytest.ini").write_text(ini, encoding="utf-8")
    for place, text in tests.items():
        path = project / "tests" / place.replace("__", "/test_").__add__(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, SCRIPT, "logs", "-q", *options, "tests"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("options", [(), ("-n", "2", "--dist", "loadgroup")])
def test_a_flaky_test_is_named_and_fails_nothing(tmp_path: Path, options: tuple[str, ...]) -> None:
    code, lines = run(tmp_path, *options, system__flaky=FLAKY, unit__sound=SOUND)
    assert code == 0
    assert lines[-1] == "flaky: tests/system/test_flaky.py::test_flaky"
    assert "the first run" in (tmp_path / "logs" / "first.log").read_text()
    assert (tmp_path / "logs" / "flaky").read_text() == f"{lines[-1]}\n"
    assert "1 passed" in (tmp_path / "logs" / "again.log").read_text()


def test_a_scene_runs_again_after_the_scene_before(tmp_path: Path) -> None:
    code, lines = run(tmp_path, system__scenes=SCENES)
    assert code == 0
    assert lines[-1] == "flaky: tests/system/test_scenes.py::test_scene_2"


def test_a_broken_test_fails_the_run(tmp_path: Path) -> None:
    code, lines = run(tmp_path, drills__broken=BROKEN, system__flaky=FLAKY)
    assert code == 1
    assert not any(line.startswith("flaky: ") for line in lines)


def test_a_file_that_cannot_be_imported_fails_the_run(tmp_path: Path) -> None:
    code, _ = run(tmp_path, system__torn="import no_such_module\n")
    assert code not in (0, 1)


def test_many_failed_tests_are_no_accident(tmp_path: Path) -> None:
    planted = {f"drills__flaky{number}": FLAKY for number in range(MOST_AGAIN + 1)}
    code, _ = run(tmp_path, **{place: text.replace('"seen"', f'"{place}"') for place, text in planted.items()})
    assert code == 1
    assert not (tmp_path / "logs" / "again.log").exists()


def test_a_test_that_is_left_out_by_default_runs_again_too(tmp_path: Path) -> None:
    marked = FLAKY.replace("def test_flaky", "import pytest\n\n@pytest.mark.engine\ndef test_flaky")
    ini = "[pytest]\nmarkers = engine\naddopts = -m 'not engine'\n"
    code, lines = run(tmp_path, "-m", "engine", ini=ini, system__flaky=marked)
    assert (code, lines[-1]) == (0, "flaky: tests/system/test_flaky.py::test_flaky")
    assert "1 passed" in (tmp_path / "logs" / "again.log").read_text()
