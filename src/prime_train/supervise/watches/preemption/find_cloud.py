"""Finds the cloud of this machine from files of its firmware. Sends nothing, so a machine elsewhere has no traffic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple, get_args
from urllib.parse import urlsplit

Cloud = Literal["aws", "gcp", "azure"]

OVERRIDE = "PRIME_TRAIN_METADATA"  # "gcp=http://127.0.0.1:8080": this cloud, at this address; "off": none
_DMI = Path("/sys/class/dmi/id")
# The link-local address is the same on all three; Google's name for it resolves to it on every machine.
_ADDRESS = "http://169.254.169.254"
_AZURE_CHASSIS = "7783-7084-3265-9085-8269-3286-77"  # learn.microsoft.com: the chassis tag of every virtual machine
_ALLOWED = ("127.0.0.1", "::1", "localhost", "169.254.169.254", "fd00:ec2::254", "metadata.google.internal")


class Metadata(NamedTuple):
    """The cloud, and the address of its metadata server without a path."""

    cloud: Cloud
    url: str


def find_cloud(environment: Mapping[str, str], dmi: Path = _DMI) -> Metadata | None:
    """The cloud of this machine; None elsewhere, and if an override names another machine than this one."""
    if OVERRIDE in environment:
        return read_override(environment[OVERRIDE])
    vendor, product = _read(dmi / "sys_vendor"), _read(dmi / "product_name")
    if vendor == "Amazon EC2" or _read(dmi / "board_vendor") == "Amazon EC2":
        return Metadata("aws", _ADDRESS)
    if product == "Google Compute Engine":
        return Metadata("gcp", _ADDRESS)
    if vendor == "Microsoft Corporation" and _read(dmi / "chassis_asset_tag") == _AZURE_CHASSIS:
        return Metadata("azure", _ADDRESS)
    return None


def read_override(text: str) -> Metadata | None:
    """The value of the variable; None unless it names a known cloud and a metadata server or this machine."""
    name, _, url = text.partition("=")
    parts = urlsplit(url)
    known = next((cloud for cloud in get_args(Cloud) if cloud == name), None)
    if known is None or parts.scheme != "http" or parts.hostname not in _ALLOWED:
        return None
    return Metadata(known, url.rstrip("/"))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
