"""The result, the error or the end of a child becomes the result or the error of the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.cli.terminal.child import run_child
from prime_train.core.errors import ExitCode, UserError

ERROR = '{"what": "w", "where": "h", "why": "y", "fix": "f", "exit_code": 4}'


def child(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> dict[str, object]:
    """What `run_child` makes of a module with these lines, which has the request in `given`."""
    (folder / "made_child.py").write_text("import json, os, sys\ngiven = json.load(sys.stdin)\n" + "\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return run_child("made_child", {"name": "request"})


def test_the_last_line_is_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (
        "print('a module prints')",
        'print(\'{"phase": "checking", "total_bytes": 9}\')',
        "print('{\"bytes\": 9}')",
        "print('[1]')",
        "print(json.dumps({'result': given}))",
    )
    assert child(tmp_path, monkeypatch, *lines) == {"name": "request"}


def test_an_error_keeps_its_parts_and_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError) as raised:
        child(tmp_path, monkeypatch, f"print('{{\"error\": {ERROR}}}')", "sys.exit(4)")
    assert (raised.value.what, raised.value.where, raised.value.why, raised.value.fix) == ("w", "h", "y", "f")
    assert raised.value.exit_code is ExitCode.OUT_OF_REACH


@pytest.mark.parametrize(
    ("line", "what", "code"),
    [
        ("1 / 0", "ZeroDivisionError", ExitCode.BUG),
        ("import no_such_package", "no_such_package", ExitCode.OUT_OF_REACH),
        ("os.kill(os.getpid(), 9)", "it was killed", ExitCode.OUT_OF_REACH),
        ("pass", "exit code 0: no error message", ExitCode.BUG),
        ("print('{\"result\": {}}'); sys.exit(9)", "exit code 9", ExitCode.BUG),
    ],
)
def test_a_child_that_ends_otherwise_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, what: str, code: ExitCode
) -> None:
    with pytest.raises(UserError, match=what) as raised:
        child(tmp_path, monkeypatch, line)
    assert raised.value.exit_code is code
    assert raised.value.fix
