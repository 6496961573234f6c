from __future__ import annotations

import multiprocessing
import os
import time
from datetime import date
from pathlib import Path

import pytest

from prime_train.core.errors import UserError
from prime_train.prices import store
from prime_train.prices.price import Price

TODAY = date(2026, 11, 21)


def price(provider: str, gpu: str = "h100-80gb", usd: float = 2.0, gpus: int = 8) -> Price:
    return Price(provider, gpu, gpus, usd, False, "", "test", "2026-11-20")


@pytest.fixture(autouse=True)
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "prices.toml"


def own() -> set[Price]:
    return set(store.load(TODAY)) - set(store.shipped_prices())


def test_without_a_file_the_shipped_rows_count() -> None:
    assert store.load(TODAY) == store.shipped_prices()


def test_every_shipped_row_names_its_source() -> None:
    assert all("@" in row.source or row.as_of for row in store.shipped_prices())  # a commit, or a day
    assert len(set(store.shipped_prices())) == len(store.shipped_prices())


def test_own_rows_take_the_place_of_shipped_ones_of_the_same_cloud_and_gpu(own_file: Path) -> None:
    assert store.save([price("primeintellect/nebius")], TODAY, whole=True) == own_file
    table = store.load(TODAY)
    assert own() == {price("primeintellect/nebius")}
    assert not [row for row in table[1:] if (row.cloud, row.gpu) == ("primeintellect", "h100-80gb")]
    assert [row for row in table if (row.cloud, row.gpu) == ("primeintellect", "h200")]
    assert [row for row in table if (row.cloud, row.gpu) == ("lambda", "h100-80gb")]


def test_a_whole_list_replaces_its_cloud_and_a_part_its_gpus() -> None:
    store.save([price("vast"), price("vast", "h200"), price("lambda")], TODAY, whole=True)
    store.save([price("vast", usd=1.5)], TODAY, whole=False)
    assert own() == {price("vast", usd=1.5), price("vast", "h200"), price("lambda")}
    store.save([price("vast", usd=1.2)], TODAY, whole=True)
    assert own() == {price("vast", usd=1.2), price("lambda")}


def test_a_write_that_fails_leaves_the_table_as_it_was(own_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save([price("vast")], TODAY, whole=True)
    before = own_file.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError) as raised:
        store.save([price("lambda")], TODAY, whole=True)
    assert raised.value.why == "No space left on device"
    assert own_file.read_bytes() == before
    assert sorted(path.name for path in own_file.parent.iterdir()) == [".prices.toml.lock", "prices.toml"]


def test_a_table_with_a_wrong_price_is_refused_and_not_overwritten(own_file: Path) -> None:
    store.save([price("vast")], TODAY, whole=True)
    own_file.write_text(own_file.read_text().replace("usd_per_gpu_hour = 2.0", "usd_per_gpu_hour = nan"))
    for call in (lambda: store.load(TODAY), lambda: store.save([price("lambda")], TODAY, whole=True)):
        with pytest.raises(UserError) as raised:
            call()
        assert "column usd_per_gpu_hour" in raised.value.where
        assert str(own_file) in raised.value.fix
    assert "nan" in own_file.read_text()


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[[price]"])
def test_a_file_that_is_no_table(own_file: Path, content: bytes) -> None:
    own_file.parent.mkdir()
    own_file.write_bytes(content)
    with pytest.raises(UserError, match=r"prices\.toml"):
        store.load(TODAY)


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "taken"))
    with pytest.raises(UserError) as raised:
        store.save([price("vast")], TODAY, whole=True)
    assert "PRIME_TRAIN_CACHE" in raised.value.fix


def _keep_one(index: int) -> None:
    store.save([price(f"cloud{index}")], TODAY, whole=True)


def test_imports_at_once_all_land() -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        pool.map(_keep_one, range(8))
    assert {row.provider for row in own()} == {f"cloud{index}" for index in range(8)}


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PRIME_TRAIN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.user_file() == tmp_path / "prime-train" / "prices.toml"


def test_a_price_of_today_is_of_no_later_day_wherever_the_clock_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    days = set()
    for zone in ("Etc/GMT+12", "UTC", "Etc/GMT-14"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        days.add(store.today())
    monkeypatch.undo()
    time.tzset()
    assert len(days) == 1
