"""The conversation of `init` on a terminal of its own: arrow keys, back, Ctrl-C, narrow, without colour."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prime_train.trainer.audio.chirps import write_clips
from tests.system.cli.terminal import Terminal, write_program

_DOWN, _ENTER, _ESCAPE, _CLEAR, _CTRL_C = b"\x1b[B", b"\r", b"\x1b", b"\x15", b"\x03"
_GIVEN = ("--model", "Qwen/Qwen3-0.6B", "--gpus", "1xrtx4090", "--spot", "--offline")


class Started:
    """`init` on a terminal in a folder without a config."""

    def __init__(self, folder: Path, *arguments: str, columns: str = "80", no_color: str = "") -> None:
        program = write_program(folder)
        self.terminal = Terminal(program, "init", *arguments, cwd=folder, columns=columns, no_color=no_color)

    def __enter__(self) -> Terminal:
        return self.terminal

    def __exit__(self, *_: object) -> None:
        self.terminal.close()


def _answer(terminal: Terminal, question: str, *keys: bytes) -> None:
    terminal.wait_for(question)
    for key in keys:
        terminal.press(key)


def test_arrow_keys_and_back_lead_to_a_config(tmp_path: Path) -> None:
    with Started(tmp_path, "--offline", "--trainer", "bundled") as terminal:
        _answer(terminal, "What is trained", _DOWN, _DOWN, _ENTER)
        _answer(terminal, "Which model", b"Qwen/Qwen3-1.7B", _ENTER)
        terminal.wait_for("Qwen/Qwen3-1.7B +RL: not known")
        _answer(terminal, "Which GPUs", _ESCAPE)
        _answer(terminal, "(?s)Which GPUs.*Which model", b"Qwen/Qwen3-0.6B", _ENTER)
        _answer(terminal, "(?s)Which GPUs.*Which model.*Which GPUs", _CLEAR, b"1xrtx4090", _ENTER)
        terminal.wait_for("1 x rtx-4090, 23.6 GiB each")
        _answer(terminal, "Which environment", _CLEAR, b"calculator", _ENTER)
        terminal.wait_for(r"64\s+rollouts\s+of\s+a\s+step\s+in\s+groups\s+of\s+8")
        _answer(terminal, "Which machines", _DOWN, _ENTER)
        _answer(terminal, "The most that it may cost", _ENTER)
        _answer(terminal, "The longest that it may take", _ENTER)
        terminal.wait_for("All checks|rules passed")
        assert not (tmp_path / "run.toml").exists()
        _answer(terminal, r"Write\s+it\?", _ENTER)
        assert terminal.end() == 0
    written = (tmp_path / "run.toml").read_text(encoding="utf-8")
    assert 'path = "Qwen/Qwen3-0.6B"' in written
    assert 'kind = "calculator"' in written
    assert "interruptions an hour on spot machines" in written or "a quarter of the run" in written


def test_an_answer_that_cannot_be_used_is_asked_for_again(tmp_path: Path) -> None:
    with Started(
        tmp_path, "--offline", "--task", "rl", "--trainer", "bundled", "--model", "Qwen/Qwen3-0.6B"
    ) as terminal:
        _answer(terminal, "Which GPUs", _CLEAR, b"1xh1000", _ENTER)
        _answer(terminal, r"(?s)h100-80gb.*Which GPUs", _CTRL_C)
        assert terminal.end() == 130


def test_data_is_asked_for_and_looked_at(tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text('{"body": "some words"}\n' * 40, encoding="utf-8")
    with Started(tmp_path, *_GIVEN, "--task", "pretrain") as terminal:
        _answer(terminal, "Which trainer", _ENTER)
        _answer(terminal, "Which data", b"gone.jsonl", _ENTER)
        _answer(terminal, r"(?s)there\s+is\s+no\s+such\s+file.*Which data", _CLEAR, b"text.jsonl", _ENTER)
        terminal.wait_for(r"text\s+in\s+body,\s+up\s+to\s+10\s+characters")
        _answer(terminal, "The most that it may cost", _CTRL_C)
        assert terminal.end() == 130


def test_clips_are_asked_for_and_looked_at(tmp_path: Path) -> None:
    made = write_clips(tmp_path / "clips", 24, 1.0)
    with Started(tmp_path, "--offline") as terminal:
        _answer(terminal, "What is trained", _DOWN, _DOWN, _DOWN, _ENTER)
        _answer(terminal, "Which trainer", _ENTER)
        _answer(terminal, "Which data", b"gone", _ENTER)
        _answer(terminal, r"(?s)does\s+not\s+exist.*Which data", _CLEAR, made.parent.name.encode(), _ENTER)
        terminal.wait_for(r"24\s+clips\s+in\s+1\s+files,\s+12\s+labels")
        _answer(terminal, "Write it", _ENTER)
        assert terminal.end() == 0
    assert 'kind = "audio"' in (tmp_path / "run.toml").read_text(encoding="utf-8")


def test_audio_is_trained_by_a_command_as_well(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('step 1')\n", encoding="utf-8")
    with Started(tmp_path, "--offline") as terminal:
        _answer(terminal, "What is trained", _DOWN, _DOWN, _DOWN, _ENTER)
        _answer(terminal, "Which trainer", _DOWN, _ENTER)
        _answer(terminal, "Which command", b"python train.py", _ENTER)
        terminal.wait_for(r"sizes\s+are\s+those\s+of\s+the\s+command")
        _answer(terminal, "Write it", _DOWN, _ENTER)
        _answer(terminal, "(?s)Write it.*Which command", _CLEAR, b"python train.py --more", _ENTER)
        _answer(terminal, "(?s)Write it.*--more.*Write it", _ENTER)
        assert terminal.end() == 0
    written = (tmp_path / "run.toml").read_text(encoding="utf-8")
    assert 'kind = "command"' in written
    assert '"--more"' in written


def test_without_a_question_an_error_ends_it(tmp_path: Path) -> None:
    given = (
        "--task",
        "rl",
        "--trainer",
        "bundled",
        "--env",
        "reverse-text",
        "--budget-usd",
        "5",
        "--budget-hours",
        "1",
    )
    with Started(tmp_path, *given, "--model", "Qwen/Qwen3-32B", "--gpus", "1xt4", "--spot", "--offline") as terminal:
        terminal.wait_for(r"does\s+not\s+fit")
        assert terminal.end() == 1


@pytest.mark.parametrize("question", ["What is trained", "Write it"])
def test_ctrl_c_writes_nothing(tmp_path: Path, question: str) -> None:
    given = (*_GIVEN, "--env", "reverse-text", "--trainer", "bundled")
    with Started(tmp_path, *given, *(("--task", "rl") if question == "Write it" else ())) as terminal:
        if question == "Write it":
            _answer(terminal, "The most that it may cost", _ENTER)
            _answer(terminal, "The longest that it may take", _ENTER)
        _answer(terminal, question, _CTRL_C)
        assert terminal.end() == 130
    assert [path.name for path in tmp_path.iterdir()] == ["prime-train"]


def test_another_answer_may_be_given_after_the_preview(tmp_path: Path) -> None:
    given = (*_GIVEN, "--env", "reverse-text", "--trainer", "bundled", "--task", "rl")
    with Started(tmp_path, *given) as terminal:
        _answer(terminal, "The most that it may cost", _ENTER)
        _answer(terminal, "The longest that it may take", _ENTER)
        _answer(terminal, "Write it", _DOWN, _ENTER)
        _answer(terminal, "(?s)Write it.*The longest that it may take", b"0.000001", _ENTER)
        terminal.wait_for("fewer than 20")
        _answer(terminal, "(?s)fewer than 20.*The longest that it may take", _CTRL_C)
        assert terminal.end() == 130


def test_a_narrow_terminal_keeps_every_word(tmp_path: Path) -> None:
    given = (*_GIVEN, "--env", "reverse-text", "--trainer", "bundled", "--task", "rl")
    with Started(tmp_path, *given, columns="40") as terminal:
        _answer(terminal, "The most that it", _ENTER)
        _answer(terminal, "The longest that it", _ENTER)
        _answer(terminal, r"Write\s+it", _ENTER)
        assert terminal.end() == 0
        assert re.search(r"written:\s+run.toml", terminal.shown)


@pytest.mark.parametrize("variable", ["", "1"])
def test_no_color_is_kept(tmp_path: Path, variable: str) -> None:
    with Started(tmp_path, "--offline", no_color=variable) as terminal:
        _answer(terminal, "What is trained", _CTRL_C)
        assert terminal.end() == 130
        assert bool(re.search(r"\x1b\[[0-9;]*3[0-9;]*m", terminal.raw)) is not bool(variable)
