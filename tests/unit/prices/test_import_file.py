from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from prime_train.core.errors import UserError
from prime_train.prices import store
from prime_train.prices.price import format_table
from tests.fakes.price_server import prime_offer, vast_offer
from tests.unit.prices.test_skypilot import CATALOGUES, NEBIUS

TODAY = date(2026, 11, 21)
CSV = "vms.csv"


def written(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    day = 1793577600  # 2026-11-02
    os.utime(path, (day, day))
    return path


@pytest.mark.parametrize(
    ("name", "content", "kind", "whole", "gpus"),
    [
        ("nebius/vms.csv", NEBIUS, "SkyPilot", True, {"h100-80gb", "h200"}),
        ("nebius/vms.csv", "\ufeff" + NEBIUS, "SkyPilot", True, {"h100-80gb", "h200"}),
        ("answer.json", {"items": [prime_offer()], "totalCount": 1}, "Prime Intellect", False, {"h100-80gb"}),
        ("answer.json", {"H100_80GB": [prime_offer()]}, "Prime Intellect", False, {"h100-80gb"}),
        ("answer.txt", [prime_offer()], "Prime Intellect", False, {"h100-80gb"}),
        (
            "offers",
            {"offers": [vast_offer(), vast_offer(gpu_name="H200", gpu_ram=143771)]},
            "Vast",
            False,
            {"h100-80gb", "h200"},
        ),
        ("raw.json", [vast_offer()], "Vast", False, {"h100-80gb"}),
    ],
)
def test_a_file_is_known_by_its_shape(
    name: str, content: Any, kind: str, whole: bool, gpus: set[str], tmp_path: Path
) -> None:
    imported = store.read_price_file(written(tmp_path / name, content), TODAY)
    assert (imported.kind, imported.whole) == (kind, whole)
    assert {price.gpu for price in imported.rows.prices} == gpus
    assert {price.as_of for price in imported.rows.prices} == {"2026-11-02"}  # the day of the file


def test_our_own_table_is_read(tmp_path: Path) -> None:
    prices = store.read_price_file(written(tmp_path / "nebius" / CSV, NEBIUS), TODAY).rows.prices
    imported = store.read_price_file(written(tmp_path / "mine.toml", format_table(prices)), TODAY)
    assert imported.kind == "prime-train"
    assert set(imported.rows.prices) == set(prices)


@pytest.mark.parametrize("provider", sorted(path.name for path in CATALOGUES.iterdir()))
def test_a_catalogue_gives_its_cloud_by_its_folder(provider: str) -> None:
    imported = store.read_price_file(CATALOGUES / provider / CSV, TODAY, as_of="2026-11-01")
    assert {price.cloud for price in imported.rows.prices} == {provider}
    assert {price.as_of for price in imported.rows.prices} == {"2026-11-01"}


def test_a_catalogue_of_another_name_must_be_reported(tmp_path: Path) -> None:
    path = written(tmp_path / "prices.csv", NEBIUS)
    with pytest.raises(UserError) as raised:
        store.read_price_file(path, TODAY)
    assert "--provider" in raised.value.fix
    assert store.read_price_file(path, TODAY, "nebius").rows.prices[0].provider == "nebius"


@pytest.mark.parametrize("provider", ["a b", "../x", "x" * 60, "Nebius\n"])
def test_what_is_no_name_of_a_cloud(provider: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not the name of a cloud"):
        store.read_price_file(written(tmp_path / CSV, NEBIUS), TODAY, provider)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("nebius/vms.csv", NEBIUS.replace("23.60", "nan", 1), "line 3, column Price"),
        ("nebius/vms.csv", NEBIUS.replace(",Price", ",Prize", 1), "no column Price"),
        ("nebius/vms.csv", "InstanceType,AcceleratorName\n", "no column AcceleratorCount"),
        ("nebius/vms.csv", NEBIUS.split("gpu-", maxsplit=1)[0], "no price in it"),
        ("nebius/vms.csv", "", "no column InstanceType"),
        ("a.json", {"items": [prime_offer(prices={"onDemand": float("nan")})]}, "items[0].prices.onDemand"),
        ("a.json", {"items": []}, "no price in it"),
        ("a.json", {"items": [prime_offer(gpuType="TPU")]}, "TPU is not in registry"),
        ("a.json", {"offers": [vast_offer(dph_total=-1)]}, "offers[0].dph_total"),
        ("a.json", {"detail": "Invalid key"}, "the JSON is no price list"),
        ("a.json", json.dumps({"items": [prime_offer()]})[:-40], "may be cut off"),
        ("a.json", '{"items": ' + "[" * 100_000, "nested too deeply"),
        ("a.toml", "[[price]]\nprovider = 'x'\n", "a.toml line 1: no gpu"),
        ("a.toml", "[[price", "not TOML"),
        ("a.toml", "[[price]]\ngpus = " + "9" * 5000, "not TOML"),
        ("a.toml", "[[price]]\ngpus = " + "[" * 5000, "not TOML"),
        ("a.json", '{"items": ' + "9" * 5000 + "}", "the JSON cannot be read"),
        ("page.html", "<html>log in</html>", "its format is not known"),
        ("empty", "", "its format is not known"),
    ],
)
def test_what_is_no_price_list(name: str, content: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        store.read_price_file(written(tmp_path / name, content), TODAY)
    error = raised.value
    assert said in str(error)
    assert all((error.what, error.where, error.why, error.fix))
    assert error.exit_code == 2


def test_several_faults_are_counted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="and 1 more"):
        store.read_price_file(written(tmp_path / "nebius" / CSV, NEBIUS.replace(",3.50,", ",-1,")), TODAY)


@pytest.mark.parametrize("name", ["gone.csv", "."])
def test_what_cannot_be_read(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such file|cannot be read"):
        store.read_price_file(tmp_path / name, TODAY)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / CSV).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot be read"):
        store.read_price_file(tmp_path / CSV, TODAY, "x")
