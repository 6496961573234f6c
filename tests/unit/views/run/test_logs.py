import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.core.redaction import MASK
from prime_train.core.rundir import RunDir
from prime_train.views.run import logs
from tests.planted import KINDS, draw, in_text


def _log(run_dir: RunDir, attempt: int, content: bytes) -> None:
    run_dir.attempt(attempt).mkdir(parents=True, exist_ok=True)
    run_dir.log(attempt, "trainer").write_bytes(content)


def _last(run_dir: RunDir, lines: int) -> bytes:
    tail = logs.Tail(logs.attempt_log(run_dir, 1))
    tail.skip_to_last(lines)
    return b"".join(tail.more())


@given(
    content=st.lists(st.sampled_from([b"\n", b"a", b"bc\n", b"d" * 40_000, b"e" * 70_000 + b"\n"])).map(b"".join),
    lines=st.integers(1, 5),
)
def test_the_last_lines_are_those_of_the_whole_text(
    content: bytes, lines: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run_dir = RunDir(tmp_path_factory.mktemp("run"))
    _log(run_dir, 1, content)
    assert _last(run_dir, lines) == b"".join(content.splitlines(keepends=True)[-lines:])


def test_no_number_of_lines_shows_the_whole_log(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    _log(run_dir, 1, b"one\ntwo\n")
    assert _last(run_dir, 0) == b"one\ntwo\n"


def test_what_is_appended_is_read_once(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    _log(run_dir, 1, b"one\ntwo\n")
    tail = logs.Tail(logs.attempt_log(run_dir, 1))
    tail.skip_to_last(1)
    assert b"".join(tail.more()) == b"two\n"
    with open(tail.path, "ab") as file:
        file.write(b"three\n")
    assert b"".join(tail.more()) == b"three\n"
    assert b"".join(tail.more()) == b""


def test_an_attempt_without_a_log_yet_shows_nothing(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.attempt(1).mkdir(parents=True)
    assert _last(run_dir, 10) == b""


def test_the_latest_attempt_is_taken_and_an_unknown_one_refused(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    with pytest.raises(UserError, match="no log"):
        logs.attempt_or_latest(run_dir, None)
    for attempt in (1, 2, 11):
        _log(run_dir, attempt, b"")
    assert logs.attempt_or_latest(run_dir, None) == 11
    assert logs.attempt_or_latest(run_dir, 2) == 2
    with pytest.raises(UserError, match="no attempt 5"):
        logs.attempt_or_latest(run_dir, 5)


def test_a_log_is_printed_without_colours_controls_and_secrets() -> None:
    printable = logs.Printable(("hidden-value",))
    text = "5%\r10%\r\n\x1b[31mred\x1b[0m \x1b]0;title\x07\x07 hidden-value hf_\x1b[1m" + "a" * 34 + "\ntorn"
    shown = "".join(printable.feed(bytes([byte])) for byte in text.encode()) + printable.flush()
    assert shown == f"5%\n10%\nred \ufffd {MASK} {MASK}\ntorn"


def test_a_log_is_printed_without_secrets_of_any_form() -> None:
    chance = random.Random(13)
    planted = {kind: draw(chance, kind) for kind in KINDS}
    printable = logs.Printable(())
    text = "".join(f"before\n{text}\n" for _, text in planted.values()) + "after\n"
    shown = "".join(printable.feed(bytes([byte])) for byte in text.encode()) + printable.flush()
    assert [kind for kind, (secret, _) in planted.items() if in_text(shown, secret)] == []
    assert (shown.count("before\n"), shown.endswith("after\n")) == (len(KINDS), True)


def test_the_last_lines_of_a_private_key_are_not_shown(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    body = "\n".join("MIIEpAIBAAKCAQEA" * 4 for _ in range(20))
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----"
    _log(run_dir, 1, f"before\nkey: {key}\nafter\n".encode())
    tail, printable = logs.Tail(run_dir.log(1, "trainer")), logs.Printable(())
    tail.skip_to_last(4)
    assert "".join(printable.feed(chunk) for chunk in tail.more()) + printable.flush() == f"key: {MASK}\nafter\n"
