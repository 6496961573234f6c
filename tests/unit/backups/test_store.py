"""The store on a real S3 server and on a folder: the same answers, nothing torn, faults repeated or reported."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from prime_train.backups import settings
from prime_train.backups import store as stores
from prime_train.backups.store import Store, open_store
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.installation import install_command
from prime_train.spec.supervision import Backup
from tests.unit.backups import scene
from tests.unit.backups.s3_server import set_faults


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    found: Store = scene.local_store(tmp_path / "bucket") if request.param == "local" else request.getfixturevalue("s3")
    return found


def hashes(content: bytes) -> tuple[int, str, str]:
    return len(content), hashlib.sha256(content).hexdigest(), hashlib.md5(content).hexdigest()


def test_objects_are_written_listed_read_and_deleted(store: Store) -> None:
    store.check()
    assert store.list("run") == {}
    assert store.read("run/a", 10) is None
    store.write("run/a", b"one")
    store.write("run/b/c", b"three")
    store.write("runs/d", b"of another run")
    assert {name: found.size_bytes for name, found in store.list("run").items()} == {"a": 3, "b/c": 5}
    assert all(found.changed_s > 0 for found in store.list("run").values())
    assert store.read("run/b/c", 5) == b"three"
    store.write("run/a", b"other")
    assert store.read("run/a", 5) == b"other"
    store.delete(["run/a", "run/b/c", "run/missing"])
    assert store.list("run") == {}
    assert store.read("runs/d", 100) == b"of another run"


def test_an_object_that_is_too_large_is_not_read_whole(store: Store) -> None:
    store.write("run/a", b"x" * 1000)
    with pytest.raises(UserError, match="more than 999 B"):
        store.read("run/a", 999)


def test_a_proof_is_of_what_the_provider_holds(store: Store) -> None:
    store.write("run/a", b"content")
    assert store.prove("run/a", *hashes(b"content")) == (True, "stored hash")
    assert not store.prove("run/a", *hashes(b"CONTENT")).matches
    assert store.prove("run/missing", *hashes(b"content")) == (False, "it is missing")


def test_without_a_stored_hash_the_object_is_read_back(s3: Store) -> None:
    """An upload in several parts by another program has neither a SHA-256 nor an MD5 of the whole."""
    content = os.urandom(6 * 2**20)
    with s3.fs.open(f"{s3.root}/run/a", "wb", block_size=5 * 2**20) as out:
        out.write(content)
    assert s3.prove("run/a", *hashes(content)) == (True, "read back")


def test_s3_gets_the_hash_with_the_object_and_keeps_it(s3: Store) -> None:
    """AWS compares it with what arrived, and refuses another content."""
    s3.write("run/a", b"content")
    head = s3.fs.call_s3("head_object", Bucket=s3.backup.bucket, Key="team/run/a", ChecksumMode="ENABLED")
    assert stores._hex(head["ChecksumSHA256"]) == hashlib.sha256(b"content").hexdigest()


def test_b2_sends_the_hash_that_its_service_checks(s3: Store) -> None:
    b2 = open_store(Backup(provider="b2", bucket=s3.backup.bucket, prefix="b2", endpoint=s3.backup.endpoint))
    b2.write("run/a", b"content")
    assert b2.prove("run/a", *hashes(b"content")) == (True, "stored hash")


def test_a_missing_bucket_is_not_an_empty_one(store: Store, tmp_path: Path) -> None:
    other = Backup(
        provider=store.backup.provider,
        bucket=str(tmp_path / "none") if store.backup.provider == "local" else "no-such-bucket",
        endpoint=store.backup.endpoint,
    )
    with pytest.raises(UserError) as found:
        open_store(other).check()
    assert found.value.exit_code == ExitCode.OUT_OF_REACH


def test_a_server_that_fails_30_percent_of_calls_is_asked_again(s3: Store, s3_address: str) -> None:
    set_faults(s3_address, 0.3, seed=7)
    for number in range(6):
        s3.write(f"run/{number}", bytes([number]) * 1000)
    assert [s3.read(f"run/{number}", 1000) for number in range(6)] == [bytes([number]) * 1000 for number in range(6)]
    assert len(s3.list("run")) == 6


def test_a_server_that_is_gone_is_reported_in_four_parts_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_ATTEMPTS", 2)
    gone = open_store(Backup(provider="s3", bucket="bucket", endpoint="http://127.0.0.1:9"))
    with pytest.raises(UserError) as found:
        gone.write("run/a", b"")
    assert found.value.where == "s3://bucket"
    assert "cannot be written" in found.value.what
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in str(found.value)


@pytest.mark.parametrize(("provider", "package", "extra"), [("s3", "s3fs", "backup"), ("gcs", "gcsfs", "gcs")])
def test_a_missing_package_is_named_with_its_extra(
    provider: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError) as found:
        open_store(Backup(provider=provider, bucket="bucket"))  # type: ignore[arg-type]
    assert package in found.value.what
    assert found.value.fix == install_command(extra)
    assert found.value.exit_code == ExitCode.OUT_OF_REACH


def test_azure_without_an_account_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("adlfs")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    with pytest.raises(UserError, match="no storage account"):
        open_store(Backup(provider="azure", bucket="container"))


def test_a_folder_never_shows_half_an_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = scene.local_store(tmp_path / "bucket")
    store.write("run/a", b"before")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match="No space left"):
        store.write("run/a", b"after")
    assert store.read("run/a", 10) == b"before"
    assert list(store.list("run")) == ["a"]
