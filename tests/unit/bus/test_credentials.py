from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.bus.credentials import VARIABLE, Credentials, read_credentials
from prime_train.core.errors import UserError

HERE = "nats://127.0.0.1:4222"


def test_a_file_for_its_owner_alone_is_read(tmp_path: Path) -> None:
    file = tmp_path / "m1.json"
    Credentials("", 0, "m1", "password", "pem").write(file)
    found = read_credentials("tls://10.0.0.1:4333", str(file), None, {})
    assert found == Credentials("10.0.0.1", 4333, "m1", "password", "pem", tls=True)
    file.chmod(0o640)
    with pytest.raises(UserError, match="others may read it"):
        read_credentials(HERE, str(file), None, {})


def test_a_variable_has_the_same_text() -> None:
    text = '{"user": "m1", "password": "p"}'
    assert read_credentials(HERE, None, None, {VARIABLE: text}).user == "m1"
    assert read_credentials(HERE, None, "OTHER", {"OTHER": text}).password == "p"
    with pytest.raises(UserError, match="not set"):
        read_credentials(HERE, None, "OTHER", {})
    assert read_credentials(HERE, None, None, {}).user == ""


@pytest.mark.parametrize("text", ["x", "[]", "{}", '{"user": "a b", "password": "p"}', '{"user": "m", "password": 1}'])
def test_other_texts_are_no_credentials(text: str) -> None:
    with pytest.raises(UserError, match="no credentials"):
        read_credentials(HERE, None, VARIABLE, {VARIABLE: text})


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("nats://10.0.0.1:4222", "has no TLS"),
        ("nats://host", "has no TLS"),
        ("nats://m1:password@127.0.0.1", "a name or a password"),
        ("http://127.0.0.1", "no address"),
        ("nats://", "no address"),
        ("nats://127.0.0.1:99999", "no address"),
        ("nats://127.0.0.1/x", "no address"),
        ("127.0.0.1:4222", "no address"),
    ],
)
def test_an_address_that_would_show_a_secret_or_is_none_is_refused(url: str, what: str) -> None:
    with pytest.raises(UserError, match=what):
        read_credentials(url, None, None, {})
