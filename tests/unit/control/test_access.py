"""Access: the tokens are secrets of their owner, and only the page itself may send."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from prime_train.control.access import SESSION_S, Address, Tokens, load_tokens
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


@pytest.mark.parametrize(
    ("address", "headers", "fault"),
    [
        (Address(8747, "10.0.0.5", True), {"host": "10.0.0.5:8747", "origin": "https://10.0.0.5:8747"}, ""),
        (Address(8747, "box.example", True), {"host": "Box.Example:8747"}, ""),
        (Address(8747, "fd00::2", True), {"host": "[fd00::2]:8747", "origin": "https://[fd00::2]:8747"}, ""),
        (Address(443, "10.0.0.5", True), {"host": "10.0.0.5", "origin": "https://10.0.0.5"}, ""),
        (Address(8747, "10.0.0.5", True), {"host": "127.0.0.1:8747"}, "Host"),
        (Address(8747, "10.0.0.5", True), {"host": "10.0.0.5"}, "Host"),
        (Address(8747, "10.0.0.5", True), {"host": "10.0.0.5:8747", "origin": "http://10.0.0.5:8747"}, "Origin"),
        (Address(8747, is_encrypted=True), {**OWN, "origin": "http://127.0.0.1:8747"}, "Origin"),
    ],
)
def test_another_address_is_known_by_its_own_name_alone(address: Address, headers: dict[str, str], fault: str) -> None:
    found = address.find_fault(headers, needs_origin=False)
    assert fault in found
    assert bool(found) == bool(fault)


def test_a_session_is_no_token_and_ends(tmp_path: Path) -> None:
    tokens, others = load_tokens(tmp_path / "one"), load_tokens(tmp_path / "two")
    for role in ("owner", "viewer"):
        session = tokens.create_session(role, 1000.0)
        assert tokens.find_session(session, 1000.0) == role
        assert tokens.find_session(session, 1000.0 + SESSION_S) is None, "it has ended"
        assert others.find_session(session, 1000.0) is None, "another controller has other tokens"
        assert tokens.find_role(session) is None
        assert not set(tokens) & {session, *session.split(".")}


def test_no_part_of_a_session_may_be_changed() -> None:
    tokens = Tokens("a" * 43, "b" * 43)
    session = tokens.create_session("viewer", 1000.0)
    role, end_s, proof = session.split(".")
    later = str(int(end_s) + 1)
    wrong = [f"owner.{end_s}.{proof}", f"{role}.{later}.{proof}", f"{role}.{end_s}.{'0' * 64}", f"{role}.{end_s}", ""]
    wrong += [f"{session}\n", f" {session}", f"{role}.0{end_s}.{proof}", tokens.owner, tokens.viewer, "\udcff", "é"]
    for given in wrong:
        assert tokens.find_session(given, 1000.0) is None, given
