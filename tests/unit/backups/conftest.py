"""One S3 server for the tests of a worker, and no credentials of a developer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from prime_train.backups.store import Store, open_store
from prime_train.spec.supervision import Backup
from tests.unit.backups import s3_server


@pytest.fixture(autouse=True)
def _own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name, value in s3_server.CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    with s3_server.serving() as address:
        yield address


@pytest.fixture
def s3(s3_address: str, request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty bucket; the server answers every call."""
    s3_server.set_faults(s3_address, 0.0)
    bucket = f"bucket-{abs(hash(request.node.nodeid)) % 10**12}"
    made = open_store(Backup(provider="s3", bucket=bucket, prefix="team", endpoint=s3_address))
    made.fs.mkdir(bucket)
    yield made
    s3_server.set_faults(s3_address, 0.0)
