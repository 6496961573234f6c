"""Which backup a run has: its own keys, else the user's defaults; what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.backups import settings
from prime_train.core.errors import UserError
from prime_train.spec.supervision import Backup

S3 = Backup(provider="s3", bucket="team-checkpoints")


def test_without_config_and_defaults_there_is_no_backup() -> None:
    assert settings.resolve(Backup()) is None
    assert settings.resolve(Backup(compress=True)) is None


def test_the_defaults_of_a_user_hold_where_the_config_names_no_provider() -> None:
    settings.write_defaults(replace(S3, prefix="a/b", keep_last=5, interval_steps=100))
    assert settings.resolve(Backup()) == replace(S3, prefix="a/b", keep_last=5, interval_steps=100)
    assert settings.resolve(Backup(keep_last=7)) == replace(S3, prefix="a/b", keep_last=7, interval_steps=100)
    own = Backup(provider="gcs", bucket="own")
    assert settings.resolve(own) == own
    assert settings.resolve(Backup(provider="off")) is None


def test_the_file_has_only_what_differs_from_the_schema() -> None:
    path = settings.write_defaults(S3)
    lines = path.read_text().splitlines()
    assert lines[1:] == ['provider = "s3"', 'bucket = "team-checkpoints"']


@pytest.mark.parametrize("text", ['provider = "ftp"', "keep_last = 0", "keep_last = '3'", "colour = 1", "[[["])
def test_a_file_that_is_wrong_is_refused(text: str) -> None:
    settings.defaults_file().parent.mkdir(parents=True)
    settings.defaults_file().write_text(text)
    with pytest.raises(UserError, match="cannot be read"):
        settings.resolve(Backup())


@pytest.mark.parametrize(
    "wrong",
    [
        Backup(provider="s3"),
        replace(S3, bucket="Team"),
        replace(S3, bucket="a..b"),
        replace(S3, bucket="bucket/folder"),
        replace(S3, prefix="../other"),
        replace(S3, prefix="/team"),
        replace(S3, endpoint="https://user:pass-word@host"),
        replace(S3, endpoint="file:///etc"),
        Backup(provider="hf", bucket="no-owner"),
        Backup(provider="azure", bucket="double--dash"),
    ],
)
def test_a_location_that_cannot_work_is_refused(wrong: Backup) -> None:
    with pytest.raises(UserError) as found:
        settings.check(wrong, "here")
    assert "pass-word" not in str(found.value)


@pytest.mark.parametrize(
    "right",
    [
        replace(S3, endpoint="http://127.0.0.1:9000"),
        Backup(provider="b2", bucket="Team-Checkpoints", endpoint="https://s3.us-west-004.backblazeb2.com"),
        Backup(provider="hf", bucket="datasets/team/runs"),
        Backup(provider="local", bucket="/mnt/backup", prefix="a/b_c.d"),
    ],
)
def test_usual_locations_are_accepted(right: Backup) -> None:
    settings.check(right, "here")


@given(st.text(max_size=30))
def test_a_run_name_that_is_accepted_is_one_plain_folder(name: str) -> None:
    if settings.is_safe_run_name(name):
        assert "/" not in name
        assert name not in (".", "..")
