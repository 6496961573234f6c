"""YAML and JSON files themselves, for every program that reads them. Judges no setting."""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.config.foreign.yaml_places import YamlPlaces
from prime_train.config.parsed_config import Fault, Reading
from prime_train.core.findings import Severity
from prime_train.rules.rule import file_rule
from prime_train.toml.document import dotted

_REFUSING = frozenset({"deepspeed"})  # runtime/config_utils.py: dict_raise_error_on_duplicate_keys


@file_rule("YML001", Severity.WARNING)
def key_twice(reading: Reading) -> Iterator[Fault]:
    """A key must stand once in a table.

    most programs take the last value without a word, others refuse the file

    DeepSpeed refuses it, which is an error.

    Source: PyYAML 6.0.3, constructor.py; DeepSpeed 0.18, runtime/config_utils.py.

    Bad:
        # file axolotl.yaml
        base_model: m
        micro_batch_size: 2
        sequence_len: 2048
        gradient_accumulation_steps: 4
        datasets: [{path: d, type: alpaca}]
        micro_batch_size: 8
    Good:
        # file axolotl.yaml
        base_model: m
        micro_batch_size: 8
        sequence_len: 2048
        gradient_accumulation_steps: 4
        datasets: [{path: d, type: alpaca}]
    """
    for part in reading.foreign or ():
        places = part.document.written
        if part.at or not isinstance(places, YamlPlaces):
            continue
        severity = Severity.ERROR if part.format in _REFUSING else None
        for key, first_line, line in places.repeated:
            what = f"line {first_line} and line {line} both set {dotted(key)}, and the last one counts"
            fix = f"take out line {first_line} or line {line}"
            yield Fault("YML001", key, what, fix, severity=severity, document=part.document)
