"""What commands print on a terminal fits into its columns, with words whole and continued lines indented."""

from __future__ import annotations

import io
import re
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.cli.entry import main
from prime_train.cli.terminal.standard_streams import RedactedStream
from prime_train.events import RunOpened
from prime_train.views.text import fit
from tests.unit.cli import small
from tests.unit.views.written_runs import FIRST_ATTEMPT, WHOLE_LIFE, write_checkpoint, write_run

COMMANDS = (
    "status",
    "status long-name-of-a-run-that-was-chosen-with-care",
    "status small",
    "runs",
    "compare small whole",
    "ckpt list small",
    "ckpt verify small",
    "ckpt verify whole",
    "ckpt prune small --dry-run",
    "ckpt compress small --dry-run",
    "prices show",
    "prices show --gpu h100-80gb",
    "find --model Qwen/Qwen3-0.6B --offline",
    "presets list",
    "models list",
    "models show openai/gpt-oss-20b",
    "diagnose failed.log",
    "lint wrong.toml",
    "lint wrong.toml --diff",
    "validate run.toml --offline --gpus 8xh100-80gb",
    "rule",
    "rule BAT001",
    "rule CUDA001",
    "estimate run.toml --gpus rtx-4090",
    "estimate run.toml --gpus rtx-4090 --scaling --by-term",
    "run wrong.toml",
    "run run.toml --dry-run",
    "run rnu.toml",
    "stop small",
    "logs small",
    "verify-model model --offline",
    "init",
)
LOG = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 812, in forward
    return self.attention(hidden_states, position_embeddings, attention_mask, past_key_values, cache_position)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB of \
which 10.00 GiB is free. Including non-PyTorch memory, this process has 69.10 GiB memory in use.
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Configs, runs, a log and a model to show."""
    folder = tmp_path_factory.mktemp("w")
    small.write(folder)
    wrong = small.CONFIG.replace("layers", "layrs").replace("micro_batch = 2", "micro_batch = 2\nglobal_batch = 101")
    (folder / "wrong.toml").write_text(wrong)
    (folder / "failed.log").write_text(LOG)
    long = "long-name-of-a-run-that-was-chosen-with-care"
    opened = (0.0, "supervisor", RunOpened(long, 1, 100, "0.1.0"))
    for name, timeline in (("small", WHOLE_LIFE), (long, (opened, *FIRST_ATTEMPT[1:]))):
        run_dir = write_run(folder / "runs" / name, timeline)
        for step in (40, 50, 100):
            write_checkpoint(run_dir, step)
        write_checkpoint(run_dir, 60, complete=False)
    write_checkpoint(write_run(folder / "runs" / "whole", WHOLE_LIFE), 100)
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}')
    return folder


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_fits_the_terminal(
    command: str, columns: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = _show(command, columns, folder, monkeypatch)
    assert lines
    # A path or a command word longer than what is left beside its label stays whole.
    too_long = [line for line in lines if len(line) > columns and len(line.split()[-1]) < columns // 2]
    assert not too_long


def _show(command: str, columns: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of a command on a terminal of this width."""
    shown = Terminal()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "argv", ["prime-train", *command.split()])
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "stderr", shown)
    before = signal.getsignal(signal.SIGPIPE)
    try:
        with pytest.raises(SystemExit) as end:
            main()
    finally:
        signal.signal(signal.SIGPIPE, before)  # `logs` sets it for its own process
    assert end.value.code in (0, 1, 2, 4), shown.getvalue()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue()).splitlines()


def test_a_message_on_standard_error_is_broken_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    terminal, pipe = Terminal(), io.StringIO()
    text = "counted: 4 to 15 min for the start and for each restart (assumed)"
    for stream in (terminal, pipe):
        RedactedStream(stream, fits=True).write(f"{text}\n")
    assert pipe.getvalue() == f"{text}\n"
    assert terminal.getvalue() == "counted: 4 to 15 min for the start and\nfor each restart (assumed)\n"


def test_what_follows_a_label_stays_in_its_column() -> None:
    assert fit("  what  one two three four", 20) == "  what  one two\n        three four"
    assert fit("  1. one two three four", 14) == "  1. one two\n  three four"
    assert fit("    12 | key = 'a very long value'", 20) == "    12 | key = 'a v…"
    assert fit("\x1b[1A one two three", 8) == "\x1b[1A one two three"


@given(st.text("ab \n/", max_size=200), st.integers(20, 100))
def test_a_break_loses_no_word_and_only_a_long_word_is_wider(text: str, columns: int) -> None:
    shown = fit(text, columns)
    assert shown.split() == text.split()
    for line in shown.split("\n"):
        assert len(line) <= columns or len(line.split()[-1]) > columns * 0.5 - 12
    assert fit(shown, columns) == shown
