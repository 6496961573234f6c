import importlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from prime_train import __version__
from prime_train.cli import app
from tests.unit.cli.commands import PROGRAM, clean_environment, prime_train
from tests.unit.views.written_runs import WHOLE_LIFE, write_run

COMMANDS = (
    *(
        "lint",
        "rule",
        "validate",
        "estimate",
        "find",
        "verify-model",
        "run",
        "status",
        "runs",
        "compare",
        "logs",
        "monitor",
        "set",
        "stop",
        "pause",
        "resume",
        "gpu drain",
        "gpu test",
        "gpu return",
        "control",
        "top",
        "report",
        "profile",
        "diagnose",
    ),
    *("ckpt list", "ckpt now", "ckpt verify", "ckpt pin"),
    *("backup push", "backup pull", "backup prune", "backup verify", "backup status", "backup configure"),
    "schema export",
    *("config show", "config diff", "config save", "config list", "config history", "config restore"),
    *("presets list", "presets show", "presets copy", "models list", "models show"),
    *("trainers list", "trainers show", "trainers check"),
    *("data audio scan", "init", "prices show", "prices import", "prices refresh"),
)
# What takes long to import, or must never be part of a command line that only reads.
HEAVY = ("torch", "numpy", "transformers", "wandb", "rich", "pydantic", "psutil", "matplotlib", "huggingface_hub")
QUICKSTART = Path(__file__).parents[3] / "presets" / "quickstart.toml"

_LISTS_MODULES = """
import atexit, sys
atexit.register(lambda: print(*{name.partition(".")[0] for name in sys.modules}, file=sys.stderr))
sys.argv = ["prime-train", *sys.argv[1:]]
from prime_train.cli.entry import main
main()
"""
_PRINTS_HELPS = """
import contextlib, sys
from prime_train.cli.app import main
for command in sys.argv[1:]:
    sys.argv = ["prime-train", *command.split(), "--help"]
    with contextlib.suppress(SystemExit):
        main()
    print(end="\\f")
"""


def _python(code: str, *arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env=clean_environment() | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("lint", str(QUICKSTART))])
def test_nothing_heavy_is_imported(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = _python(_LISTS_MODULES, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not set(HEAVY) & set(done.stderr.split())


def test_help_lists_every_command_and_no_other(tmp_path: Path) -> None:
    listed = prime_train("--help", cwd=tmp_path).stdout.partition("Commands:\n")[2].partition("\n\n")[0]
    assert re.findall(r"^  (\S+)", listed, re.MULTILINE) == [*dict.fromkeys(c.split()[0] for c in COMMANDS)]
    assert "..." not in listed


@pytest.fixture(scope="module")
def helps(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each of COMMANDS prints for --help. One process prints all: a start takes longer than a help text."""
    printed = _python(_PRINTS_HELPS, *COMMANDS, cwd=tmp_path_factory.mktemp("helps"))
    assert printed.returncode == 0, printed.stderr
    return printed.stdout.split("\f")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_two_examples_and_takes_no_color(command: str, helps: list[str]) -> None:
    text = helps[COMMANDS.index(command)]
    examples = text.partition("Examples:")[2].partition("Options:")[0]
    assert examples.count(f"prime-train {command}") >= 2
    assert "--no-color" in text


def test_version(tmp_path: Path) -> None:
    assert prime_train("--version", cwd=tmp_path).stdout == f"prime-train {__version__}\n"


@pytest.mark.parametrize("arguments", [("--help",), ("lint", "--help"), ("lint", str(QUICKSTART)), ("trian",)])
def test_python_runs_the_package_as_the_script(arguments: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "prime_train", *arguments]
    done = subprocess.run(
        command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    script = prime_train(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (script.returncode, script.stdout, script.stderr)


@pytest.mark.parametrize("arguments", [("trian",), ("status", "--jsn"), ("logs",), ("ckpt", "shrink", "small")])
def test_a_wrong_command_line_is_usage(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = prime_train(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Usage: prime-train" in done.stderr


@pytest.mark.parametrize(("word", "meant"), [("restart", "run CONFIG"), ("list", "status"), ("new", "init")])
def test_a_word_of_other_programs_gets_the_command_that_does_it(word: str, meant: str, tmp_path: Path) -> None:
    done = prime_train(word, "something", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"fix   prime-train {meant}" in done.stderr


@pytest.mark.parametrize("arguments", [(), ("lint",), ("ckpt", "list")])
def test_help_is_a_word_too(arguments: tuple[str, ...], tmp_path: Path) -> None:
    asked = prime_train("help", *arguments, cwd=tmp_path)
    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout == prime_train(*arguments, "--help", cwd=tmp_path).stdout


def test_a_user_error_is_reported_in_four_parts_on_stderr(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    done = prime_train("status", "smal", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "error: RUN = smal\n"
        "  what  no run 'smal'\n"
        f"  why   the runs in {tmp_path}/runs are: small\n"
        "  fix   did you mean small?\n"
    )


_FAULTY = """
import sys
from prime_train.views.run import status
def look(run_dir, now_s): raise KeyError("hidden fault")
status.read_status = look
sys.argv = ["prime-train", *sys.argv[1:]]
from prime_train.cli.app import main
main()
"""


_NOT_OURS = """
import sys
from prime_train.core.errors import UserError
from prime_train.views.run import status
sound = status.read_status
def look(run_dir, now_s):
    if run_dir.path.name == "theirs":
        raise UserError("the events of the run may not be read", str(run_dir.path), "they are another user's", "chmod")
    return sound(run_dir, now_s)
status.read_status = look
sys.argv = ["prime-train", *sys.argv[1:]]
from prime_train.cli.app import main
sys.exit(main())
"""


def test_a_run_of_another_user_hides_none_of_ones_own(tmp_path: Path) -> None:
    for name in ("small", "theirs"):
        write_run(tmp_path / "runs" / name, WHOLE_LIFE)
    done = _python(_NOT_OURS, "status", cwd=tmp_path)
    assert "small" in done.stdout
    assert "theirs  unreadable" in done.stdout
    assert "may not be read" in done.stderr
    assert done.returncode == 0


def test_our_own_fault_ends_with_3_and_a_crash_file_without_secrets(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    environment = {"XDG_STATE_HOME": str(tmp_path / "state"), "HF_TOKEN": "hf_secret1", "FAVOURITE": "hf_secret1"}
    done = _python(_FAULTY, "status", "small", cwd=tmp_path, **environment)
    assert done.returncode == 3
    (crash,) = (tmp_path / "state" / "prime-train").iterdir()
    assert str(crash) in done.stderr
    assert "KeyError: 'hidden fault'" in done.stderr
    assert "Traceback" not in done.stderr
    told = crash.read_text(encoding="utf-8")
    assert "Traceback" in told
    assert f"prime-train {__version__}" in told
    assert "hf_secret1" not in told
    assert "FAVOURITE=(not shown)" in told


def test_our_own_fault_is_a_document_for_a_command_with_json(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    done = _python(_FAULTY, "status", "small", "--json", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "state"))
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"]["exit_code"] == 3


def test_a_crash_file_goes_elsewhere_when_home_cannot_be_written(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    (tmp_path / "state").write_text("a file where a directory should be")
    done = _python(
        _FAULTY, "status", "small", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "state"), TMPDIR=str(tmp_path)
    )
    assert done.returncode == 3
    assert len(list(tmp_path.glob("crash-*.log"))) == 1


def test_an_interrupt_ends_with_130(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    code = _FAULTY.replace('KeyError("hidden fault")', "KeyboardInterrupt")
    done = _python(code, "status", "small", cwd=tmp_path)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("rule", "--json"), ("prices", "show"), ("models", "list")])
def test_a_reader_that_goes_away_is_met_quietly(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [PROGRAM, *arguments], stdout=write, stderr=subprocess.PIPE, cwd=tmp_path, timeout=60, check=False
    )
    os.close(write)
    assert b"rror" not in done.stderr
    assert done.returncode == 128 + 13  # and not 1, which says that something was found


def _on_terminal(arguments: list[str], cwd: Path, **environment: str) -> str:
    """What a command writes to a terminal that can show colours."""
    shown, terminal = pty.openpty()
    process = subprocess.Popen(
        [str(PROGRAM), *arguments],
        cwd=cwd,
        env=clean_environment() | {"TERM": "xterm-256color"} | environment,
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    chunks = []
    while True:
        try:
            chunk = os.read(shown, 65536)
        except OSError:  # how Linux says that the other side has closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    process.wait(60)
    os.close(shown)
    return b"".join(chunks).decode()


def test_colour_is_for_terminals_and_can_be_forbidden(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    assert "\x1b[1msmall" in _on_terminal(["status", "small"], tmp_path)
    assert "\x1b" not in _on_terminal(["status", "small", "--no-color"], tmp_path)
    assert "\x1b" not in _on_terminal(["--no-color", "status", "small"], tmp_path)
    assert "\x1b" not in _on_terminal(["status", "small"], tmp_path, NO_COLOR="1")
    assert "\x1b" not in prime_train("status", "small", cwd=tmp_path, TERM="xterm-256color").stdout


def test_colour_in_a_pipe_is_for_those_who_force_it(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    assert "\x1b[1msmall" in prime_train("status", "small", cwd=tmp_path, FORCE_COLOR="1").stdout
    assert "\x1b" not in prime_train("status", "small", cwd=tmp_path, FORCE_COLOR="0").stdout
    assert "\x1b" not in prime_train("status", "small", cwd=tmp_path, FORCE_COLOR="1", NO_COLOR="1").stdout


def test_the_shell_completes_the_names_of_runs(tmp_path: Path) -> None:
    for name in ("small", "smooth", "large"):
        write_run(tmp_path / "runs" / name, WHOLE_LIFE)
    done = prime_train(
        cwd=tmp_path, _PRIME_TRAIN_COMPLETE="complete_bash", COMP_WORDS="prime-train status sm", COMP_CWORD="2"
    )
    assert done.stdout.split() == ["small", "smooth"]


@pytest.mark.parametrize("name", ["lint", "rule", "run", "status", "logs", "stop", "report", "profile"])
def test_the_list_of_commands_repeats_the_first_line_of_their_help(name: str) -> None:
    module = importlib.import_module(app.find_module(name))
    assert app._COMMANDS[name] == (getattr(module, name).__doc__ or "").partition("\n")[0]
