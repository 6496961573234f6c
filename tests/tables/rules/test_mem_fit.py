"""The memory rules follow the estimate: an error beyond the GPU, a warning at the edge, no finding below."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.config import detect
from prime_train.core.findings import Severity
from prime_train.estimate.memory.roles import memory_of
from prime_train.estimate.verdict import MemoryVerdict
from prime_train.facts.machine import Gpu, VisibleGpus
from prime_train.rules.judge import judge
from prime_train.rules.training.mem_fit import Unknown, hardware_of, shape_of
from tests.unit.rules.examples import GOOD_MACHINE

RUN = """
[run]
name = "x"
max_steps = 10
[model]
layers = {layers}
hidden_size = 4096
heads = 32
[batch]
micro_batch = 1
[[data.sources]]
kind = "python-stdlib"
"""


@given(layers=st.integers(1, 80))
@settings(max_examples=40, deadline=None)
def test_the_rule_and_the_estimate_agree(layers: int) -> None:
    machine = replace(GOOD_MACHINE, gpus=VisibleGpus((Gpu("NVIDIA H100 80GB HBM3", 85520809984, (9, 0)),), "570.0"))
    reading = detect.read(RUN.format(layers=layers), "run.toml")
    assert reading.run is not None
    hardware, shape = hardware_of(reading.run, machine), shape_of(reading.run)
    assert not isinstance(hardware, Unknown)
    assert not isinstance(shape, Unknown)
    (role,) = memory_of(reading.run, hardware, shape)[0].roles
    outside = sum(term.bytes for term in role.memory.outside)
    found = [finding for finding in judge(reading, machine).findings if finding.code == "MEM005"]
    severities = [finding.severity for finding in found]
    if role.fits:
        assert severities == []
    elif role.memory.reserved.low + outside > hardware.usable_bytes:
        assert severities == [Severity.ERROR]
    else:
        assert severities == [Severity.WARNING]
        assert ("likely fits (probability" in found[0].what) == (role.chance.verdict is MemoryVerdict.LIKELY)
