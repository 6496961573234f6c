"""The cloud is found from files of the firmware."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.supervise.watches.preemption.watch import OVERRIDE, Metadata, find_cloud, read_override

LINK_LOCAL = "http://169.254.169.254"


@pytest.mark.parametrize(
    ("files", "cloud"),
    [
        ({"sys_vendor": "Amazon EC2\n", "product_name": "p5.48xlarge\n"}, "aws"),
        ({"sys_vendor": "Xen", "board_vendor": "Amazon EC2"}, "aws"),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "gcp"),
        (
            {"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77"},
            "azure",
        ),
        ({"sys_vendor": "Microsoft Corporation", "product_name": "Surface Laptop"}, None),
        ({"sys_vendor": "Dell Inc.", "product_name": "PowerEdge XE9680"}, None),
        ({}, None),
    ],
)
def test_the_firmware_names_the_cloud(tmp_path: Path, files: dict[str, str], cloud: str | None) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = find_cloud({}, tmp_path)
    assert (found.cloud if found else None) == cloud
    assert found is None or found.url == LINK_LOCAL


def test_an_override_names_cloud_and_address(tmp_path: Path) -> None:
    assert find_cloud({OVERRIDE: "gcp=http://127.0.0.1:8080/"}, tmp_path) == Metadata("gcp", "http://127.0.0.1:8080")


@pytest.mark.parametrize(
    "text",
    ["", "off", "gcp", "vast=http://127.0.0.1:1", "aws=https://127.0.0.1", "aws=http://example.com", "aws=file:///etc"],
)
def test_an_override_to_another_machine_is_not_followed(text: str) -> None:
    assert read_override(text) is None
