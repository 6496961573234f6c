"""Rows as they stand in github.com/skypilot-org/skypilot-catalog, catalogs/v8."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.prices import catalogues
from prime_train.prices.price import Price, PriceFault, PriceRows, catch

CATALOGUES = Path(__file__).with_name("catalogues")
NEBIUS = (CATALOGUES / "nebius" / "vms.csv").read_text(encoding="utf-8")


def catalogue(provider: str) -> PriceRows:
    return read((CATALOGUES / provider / "vms.csv").read_text(encoding="utf-8"), provider)


def read(text: str, provider: str) -> PriceRows:
    rows = catalogues.rows(text, "vms.csv", provider, "2026-11-01")
    assert rows.faults == ()
    return rows


def offers(rows: PriceRows) -> set[tuple[str, int, float, bool]]:
    return {(price.gpu, price.gpus, price.usd_per_gpu_hour, price.spot) for price in rows.prices}


def test_the_price_of_an_instance_is_that_of_all_its_gpus() -> None:
    assert offers(catalogue("nebius")) == {
        ("h100-80gb", 8, 2.95, False),
        ("h100-80gb", 8, 1.25, True),
        ("h200", 1, 3.5, False),
        ("h200", 1, 1.45, True),
    }


def test_a_price_that_repeats_in_each_region_is_one_row() -> None:
    (row,) = [price for price in catalogue("nebius").prices if price.gpu == "h200" and price.spot]
    assert row == Price(
        "nebius", "h200", 1, 1.45, True, "eu-north1, eu-west1", "SkyPilot catalogue, nebius", "2026-11-01"
    )


def test_a_spot_price_equal_to_the_other_is_none() -> None:
    rows = catalogue("runpod")
    assert offers(rows) == {("a100-80gb-pcie", 2, 1.39, False)}
    assert rows.left_out == (("spot price equal to the on-demand price: there is no spot", 1),)


def test_columns_in_another_order_and_rows_of_spot_alone() -> None:
    rows = catalogue("primeintellect")
    assert offers(rows) == {
        ("h100-80gb", 8, 0.855, True),
        ("h100-80gb-pcie", 1, 1.9, False),
        ("a100-80gb", 8, 1.4, False),
    }
    assert {price.provider for price in rows.prices} == {"primeintellect/datacrunch", "primeintellect/hyperstack"}


def test_a_spot_price_of_nothing_is_none_and_odd_cards_are_left_out() -> None:
    rows = catalogue("vast")
    assert offers(rows) == {
        ("h100-nvl", 1, 2.08, False),
        ("a100-40gb", 2, 0.745, False),
        ("a100-80gb-pcie", 1, 0.87, False),
        ("v100-16gb", 8, 0.1062, False),
    }
    assert dict(rows.left_out) == {"RTX4090 is not in registry/gpus.toml": 1}


def test_gcp_gives_host_and_gpus_in_different_rows() -> None:
    rows = catalogue("gcp")
    assert offers(rows) == {("a100-40gb", 1, 3.6734, False), ("a100-40gb", 1, 1.4698, True)}
    assert dict(rows.left_out) == {
        "A100: the price of its host is not in the table": 1,  # a zone without that host
        "T4: the price of its host is not in the table": 1,  # any N1 machine carries it
    }


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("23.60,", "nan,", "line 3, column Price", "nan"),
        ("23.60,", "-23.60,", "line 3, column Price", "-23.60"),
        ("23.60,", "0,", "line 3, column Price", "not above zero"),
        ("23.60,", "2360000,", "line 3, column Price", "295000 USD for one GPU hour"),
        ("23.60,", "23.60 USD,", "line 3, column Price", "23.60 USD"),
        (",10.00", ",-1", "line 3, column SpotPrice", "-1"),
        ("H100,8,128", "H100,-8,128", "line 3, column AcceleratorCount", "-8"),
        ("H100,8,128", "H100,,128", "line 3, column AcceleratorCount", "nothing"),
    ],
)
def test_a_wrong_number_names_line_and_column(old: str, new: str, where: str, what: str) -> None:
    assert old in NEBIUS
    rows = catalogues.rows(NEBIUS.replace(old, new, 1), "vms.csv", "nebius", "")
    (fault,) = rows.faults
    assert fault.where == f"vms.csv {where}"
    assert what in fault.what


def test_a_missing_column_is_named() -> None:
    fault = catch(catalogues.rows, NEBIUS.replace("AcceleratorCount", "Accelerators"), "vms.csv", "nebius", "")
    assert isinstance(fault, PriceFault)
    assert fault.where == "vms.csv line 1"
    assert "AcceleratorCount" in fault.what


def test_a_file_that_is_cut_off_is_a_fault() -> None:
    rows = catalogues.rows(NEBIUS[:-70], "vms.csv", "nebius", "")
    assert [fault.where for fault in rows.faults] == ["vms.csv line 5"]


@pytest.mark.parametrize("info", ["", "None", "{", "{'Gpus': []}", "[" * 5000, "{'Gpus': [{'MemoryInfo': 7}]}"])
def test_a_gpu_info_that_states_nothing_leaves_the_name(info: str) -> None:
    text = f'InstanceType,AcceleratorName,AcceleratorCount,Price,Region,GpuInfo\nx,H100,8,16,r,"{info}"\n'
    assert offers(read(text, "x")) == {("h100-80gb", 8, 2.0, False)}


@given(st.integers(0, len(NEBIUS)), st.text(max_size=20), st.integers(0, 30))
def test_no_damage_trips_the_reader(at: int, inserted: str, removed: int) -> None:
    found = catch(catalogues.rows, NEBIUS[:at] + inserted + NEBIUS[at + removed :], "vms.csv", "nebius", "")
    if isinstance(found, PriceRows):
        assert all(price.usd_per_gpu_hour > 0 for price in found.prices)


def test_a_field_without_an_end_is_a_fault() -> None:
    fault = catch(catalogues.rows, NEBIUS + '"' + "x" * 200_000, "vms.csv", "nebius", "")
    assert isinstance(fault, PriceFault)
    assert "not CSV" in fault.what
