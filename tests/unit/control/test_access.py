"""Access: the tokens are secrets of their owner, and only the page itself may send."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from prime_train.control.access import Address, load_tokens
from prime_train.core.errors import UserError

OWN = {"host": "127.0.0.1:8747"}


def test_tokens_are_made_once_and_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    tokens = load_tokens(tmp_path / "runs" / ".control")
    assert tokens == load_tokens(tmp_path / "runs" / ".control")
    assert tokens.owner != tokens.viewer
    files = list((tmp_path / "runs" / ".control").iterdir())
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o600, 0o600]
    assert tokens.find_role(tokens.owner) == "owner"
    assert tokens.find_role(tokens.viewer) == "viewer"
    for wrong in ("", tokens.owner[:-1], tokens.owner + "a", "\udcff", "é" * 43):
        assert tokens.find_role(wrong) is None


@pytest.mark.parametrize(("content", "mode", "what"), [("a" * 43, 0o644, "is no secret"), ("short", 0o600, "damaged")])
def test_a_token_that_others_may_know_is_refused(tmp_path: Path, content: str, mode: int, what: str) -> None:
    (tmp_path / "token").write_text(content, encoding="ascii")
    (tmp_path / "token").chmod(mode)
    with pytest.raises(UserError, match=what):
        load_tokens(tmp_path)


def test_a_link_in_the_place_of_a_token_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("a" * 43, encoding="ascii")
    (tmp_path / "token").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="symbolic link"):
        load_tokens(tmp_path)


@pytest.mark.parametrize(
    ("headers", "needs_origin", "fault"),
    [
        (OWN, False, ""),
        ({"host": "localhost:8747", "origin": "http://localhost:8747"}, True, ""),
        ({"host": "[::1]:8747"}, False, ""),
        ({}, False, "Host"),
        ({"host": "127.0.0.1"}, False, "Host"),
        ({"host": "127.0.0.1:8748"}, False, "Host"),
        ({"host": "rebound.example:8747"}, False, "Host"),
        ({**OWN, "origin": "https://evil.example"}, False, "Origin"),
        ({**OWN, "origin": "null"}, False, "Origin"),
        ({**OWN, "origin": "http://127.0.0.1:8748"}, True, "Origin"),
        (OWN, True, "no Origin"),
    ],
)
def test_only_the_page_itself_is_let_through(headers: dict[str, str], needs_origin: bool, fault: str) -> None:
    found = Address(8747).find_fault(headers, needs_origin=needs_origin)
    assert fault in found
    assert bool(found) == bool(fault)
