from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.facts.accounts import find_wandb_login
from prime_train.facts.facts import Facts, Login, to_json

KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def _logged_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)


def test_nowhere(tmp_path: Path) -> None:
    assert find_wandb_login(tmp_path) == Login("", "api.wandb.ai", "")


def test_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert find_wandb_login(tmp_path) == Login("WANDB_API_KEY", "api.wandb.ai", "offline")


@pytest.mark.parametrize("name", [".netrc", "_netrc"])
def test_in_a_netrc_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(f"machine api.wandb.ai\n  login user\n  password {KEY}\n")
    (tmp_path / name).chmod(0o600)
    login = find_wandb_login(tmp_path)
    assert login == Login(str(tmp_path / name), "api.wandb.ai", "")
    assert KEY not in str(to_json(Facts(wandb=login)))


def test_for_a_server_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "elsewhere"
    path.write_text(f"machine api.wandb.ai login user password {KEY}\n")
    path.chmod(0o600)
    monkeypatch.setenv("NETRC", str(path))
    assert find_wandb_login(tmp_path).found == str(path)
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org:8080/api")
    assert find_wandb_login(tmp_path) == Login("", "wandb.example.org", "")


def test_a_file_that_cannot_be_read_reports_it(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text(f"machin api.wandb.ai password {KEY}\n")
    login = find_wandb_login(tmp_path)
    assert login.found == ""
    assert "line 1" in login.problem


def test_a_key_in_the_wrong_place_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text(f"machine api.wandb.ai {KEY}\n")
    login = find_wandb_login(tmp_path)
    assert "cannot be read" in login.problem
    assert KEY not in login.problem


@given(st.binary(max_size=200))
def test_no_file_ends_it_and_no_key_leaves_it(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, ".netrc").write_bytes(content + b"\nmachine api.wandb.ai login user password " + KEY.encode())
        assert KEY not in repr(find_wandb_login(Path(folder)))
