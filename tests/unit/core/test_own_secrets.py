from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from prime_train.core.redaction import MASK, own_secrets, redact, secrets
from prime_train.core.rundir import make_folder, open_private, write_atomic


def test_the_values_in_files_that_the_environment_names_are_secrets(tmp_path: Path) -> None:
    files = {
        "DB_PASSWORD_FILE": ("password", "correct-horse\n"),
        "NETRC": ("netrc", "machine api.wandb.ai\n  login user\n  password staple-battery\n"),
        "GOOGLE_APPLICATION_CREDENTIALS": (
            "key.json",
            json.dumps({"client_id": "public-id", "client_secret": "shoe-lace"}),
        ),
        "AWS_SHARED_CREDENTIALS_FILE": (
            "aws",
            "[default]\nregion = eu-central-1\naws_secret_access_key = apple/pear+plum\n",
        ),
        "NPM_CONFIG_USERCONFIG": ("npmrc", "//npm.example.com/:_authToken=window-door\n"),
    }
    environment = {}
    for variable, (name, text) in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        environment[variable] = str(tmp_path / name)
    hidden = own_secrets(environment=environment)
    shown = redact("correct-horse staple-battery shoe-lace apple/pear+plum window-door", hidden)
    assert shown == " ".join([MASK] * 5)
    assert redact("public-id in eu-central-1 for user at api.wandb.ai", hidden).count(MASK) == 0


def test_the_files_of_the_home_directory_are_read_where_no_variable_names_others(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "token").write_text("an-old-token-without-a-form", encoding="utf-8")
    (tmp_path / ".netrc").write_text("machine x login me password of-netrc", encoding="utf-8")
    hidden = own_secrets(environment={"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hub")})
    assert redact("an-old-token-without-a-form of-netrc", hidden) == f"{MASK} {MASK}"


def test_a_named_file_that_is_none_is_skipped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_text("x" * 2**20, encoding="utf-8")
    (tmp_path / "nested").write_text("[" * 200_000, encoding="utf-8")
    for name in ("pipe", "large", "nested", "missing", ".", "zero"):
        path = "/dev/zero" if name == "zero" else str(tmp_path / name)
        assert own_secrets(environment={"A_TOKEN_FILE": path}) == secrets({"A_TOKEN_FILE": path})


def test_new_files_of_a_run_are_for_their_owner_alone(tmp_path: Path) -> None:
    make_folder(tmp_path / "run" / "attempts" / "001")
    write_atomic(tmp_path / "run" / "config.toml", "text")
    os.close(open_private(tmp_path / "run" / "trainer.log", os.O_CREAT | os.O_WRONLY))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run").rglob("*")}
    assert modes == {"attempts": 0o700, "001": 0o700, "config.toml": 0o600, "trainer.log": 0o600}


def test_a_file_keeps_the_mode_that_it_has(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    write_atomic(path, "text")
    path.chmod(0o4664)  # a file that is replaced hands no right of its owner to this user's
    write_atomic(path, "another")
    assert stat.S_IMODE(path.stat().st_mode) == 0o664


def test_a_group_reads_a_run_in_a_folder_that_it_shares(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    before = os.umask(0o022)
    try:
        make_folder(tmp_path / "run")
        write_atomic(tmp_path / "run" / "config.toml", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run" / "config.toml").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) & 0o070 == 0o050
