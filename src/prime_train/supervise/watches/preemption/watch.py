"""Watches for the notice of a cloud that it takes this machine away. Elsewhere it starts no process and sends nothing.

Where a cloud gives no notice but SIGTERM, the supervisor's own answer to that signal is the same: save, end, code 75.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, get_args
from urllib.parse import urlsplit

from prime_train.core.rundir import RunDir
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.program import Context
from prime_train.supervise.watches.preemption.judge import NoticeHistory, NoticeSample, judge
from prime_train.supervise.watches.sampler import SampledWatch, Sampler
from prime_train.supervise.watches.watch import Alarm

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


_PROGRAM = Path(__file__).with_name("preemption_program.py")
INTERVAL_S = 5.0  # AWS recommends 5 s


def create(context: Context) -> PreemptionWatch | None:
    """None if this machine is at none of the three clouds."""
    answer, metadata = context.run.prime_train.watch.preemption, find_cloud(os.environ)
    assert answer != "off"
    return None if metadata is None else PreemptionWatch(context.run_dir, metadata, answer=answer)


class PreemptionWatch(SampledWatch):
    """A child asks the metadata server of `metadata`."""

    name = "preemption"

    def __init__(
        self,
        run_dir: RunDir,
        metadata: Metadata,
        *,
        answer: Literal["alert", "pause"] = "pause",
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._metadata = metadata
        self._answer = answer
        self._log = run_dir.watches / "preemption.log"
        self._memory = NoticeHistory()
        self._sampler = Sampler(_PROGRAM, [metadata.cloud, metadata.url, str(interval_s)], self._log)

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        samples, now_monotonic_s = self.take(NoticeSample), time.monotonic()
        self._memory, alarms = judge(self._memory, samples, self._metadata.cloud, now_s, now_monotonic_s, self._answer)
        return (*alarms, *self._judge_sampler())

    def _judge_sampler(self) -> Iterator[Alarm]:
        if self._sampler.failed is not None:
            what = f"notices of a pre-emption are not watched: the program ended with exit code {self._sampler.failed}"
            why, fix = "the machine may be taken away without a save before", f"see {self._log}"
            name, log = "preemption_not_watched", str(self._log)
            yield Alarm("preemption", name, "its program", "note", "unknown", what, why, fix, log)
