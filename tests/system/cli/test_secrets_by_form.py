"""Secrets that no variable holds reach no output: of events, crash files, reports, logs, JSON and messages.

They are planted in the config, in events and log lines as a program would write them, in exceptions and in argv.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from prime_train.cli.terminal import crash
from prime_train.core.rundir import RunDir, append_traceback
from prime_train.events import AlarmRaised, AttemptEnded, EventLog, LaunchAsked, RunOpened, Sampled, read
from prime_train.rules.explain import BASES
from prime_train.views.run.report import write
from tests.planted import KINDS, draw, in_text
from tests.unit.cli import small
from tests.unit.cli.commands import prime_train

_ESCAPES = "\x1b]0;title\x07\x1b[31mred\x1b[0m\x9b2J <script>alert(1)</script> [here](javascript:alert(1))"


def _planted(seed: int) -> list[tuple[str, str]]:
    chance = random.Random(seed)
    return [draw(chance, kind) for kind in KINDS]


def _shown(text: str, planted: list[tuple[str, str]]) -> list[str]:
    return [kind for kind, (secret, _) in zip(KINDS, planted, strict=True) if in_text(text, secret)]


def _run_dir(root: Path, planted: list[tuple[str, str]]) -> RunDir:
    run_dir = RunDir(root / "runs" / "small")
    log = EventLog(run_dir.events, "supervisor")
    log.append(RunOpened("small", 1, 5, "0.1.0"))
    log.append(LaunchAsked(1, 0))
    for _, text in planted:
        log.append(AlarmRaised(1, "host", "shared_memory", "host", "alert", "", text, text, f"export {text}", text, 0))
        log.append(Sampled(1, 100, f"key {text}", _ESCAPES))
    what = " ".join(text for _, text in planted)
    log.append(AttemptEnded(1, 1, "failed", "auth", f"{what} {_ESCAPES}", what, what, what, 0))
    log.close()
    run_dir.attempt(1).mkdir(parents=True)
    lines = [f"INFO {text}\r{_ESCAPES}\n" for _, text in planted]
    lines += [f"RuntimeError: CUDA out of memory for {text}\n" for _, text in planted]
    run_dir.log(1, "trainer").write_text("".join(lines) + planted[0][1], encoding="utf-8")
    return run_dir


def _command(cwd: Path, *arguments: str, **environment: str) -> str:
    done = prime_train(*arguments, cwd=cwd, **environment)
    return done.stdout + done.stderr


def test_events_and_the_report_show_none(tmp_path: Path) -> None:
    planted = _planted(1)
    run_dir = _run_dir(tmp_path, planted)
    assert not _shown((run_dir.events / "supervisor.jsonl").read_text(encoding="utf-8"), planted)
    assert len(read(run_dir.events)) == 3 + 2 * len(planted)
    write(run_dir)
    report = run_dir.report.read_text(encoding="utf-8")
    assert not _shown(report, planted)
    for raw in ("\x1b", "\x9b", "\x07", "<script", "javascript:", "](javascript"):
        assert raw not in report, raw


def test_a_crash_file_and_a_log_of_ours_show_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = _planted(2)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ODD_NAME", planted[0][1])
    monkeypatch.setattr(sys, "argv", ["prime-train", *(text for _, text in planted)])
    error = RuntimeError(" ".join(text for _, text in planted))
    path = crash.write(error)
    append_traceback(tmp_path / "watches" / "gpu.log", error)
    for written in (path, tmp_path / "watches" / "gpu.log"):
        assert not _shown(written.read_text(encoding="utf-8"), planted)
        assert written.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "command",
    [
        ("logs", "small", "-n", "0"),
        ("status", "small"),
        ("status", "small", "--json"),
        ("report", "small"),
        ("diagnose", "runs/small"),
        ("diagnose", "runs/small", "--json"),
        ("lint", "run.toml"),
        ("lint", "run.toml", "--output-format", "json"),
        ("run", "run.toml", "--dry-run", "--no-validate"),
        ("validate", "run.toml", "--offline", "--json"),
    ],
)
def test_no_command_shows_one(tmp_path: Path, command: tuple[str, ...]) -> None:
    planted = _planted(3)
    _run_dir(tmp_path, planted)
    small.write(tmp_path)
    quoted = ", ".join(json.dumps(text, ensure_ascii=False) for _, text in planted)
    config = small.CONFIG.replace('"the "', f'"the ", {quoted}')
    wrong = (
        ""
        if command[0] in ("run", "validate")
        else "\n".join(f"[[tasks]]\nkind = {json.dumps(text)}" for _, text in planted)
    )
    (tmp_path / "run.toml").write_text(f"{config}\n{wrong}\n", encoding="utf-8")
    shown = _command(tmp_path, *command)
    assert "Traceback" not in shown
    assert "error: prime-train itself" not in shown
    assert not _shown(shown, planted), shown
    assert "\x1b" not in shown


def test_a_message_shows_none_of_its_arguments(tmp_path: Path) -> None:
    planted = _planted(4)
    for secret, text in planted:
        if "\n" not in text:
            assert not in_text(_command(tmp_path, "status", text), secret)
            break
    arguments = [part for _, text in planted for part in ("--set", f"run.name={text}")]
    assert not _shown(_command(tmp_path, "run", "missing.toml", *arguments), planted)


@pytest.mark.parametrize("command", [("validate", "rl.toml", "--offline"), ("run", "rl.toml", "--dry-run")])
def test_an_interpreter_of_the_config_is_named_before_it_starts(tmp_path: Path, command: tuple[str, ...]) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho started >> started\n", encoding="utf-8")
    python.chmod(0o700)
    config = f'{BASES["prime-rl 2026-08"]}\n[prime_train]\npython = "{python}"\n'
    (tmp_path / "rl.toml").write_text(config, encoding="utf-8")
    assert f"note: the config names the interpreter {python}; it is started" in _command(tmp_path, *command)
