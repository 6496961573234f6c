"""Keys that a program does not have, in the files of other programs. Judges no value.

The names are those of one version of each program (registry/foreign/keys), so a key that is like none of them may be of
another version: this is a warning. A misspelt key is an error where the program refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prime_train.config.foreign.values import ForeignPart
from prime_train.config.foreign.yaml_places import YamlPlaces
from prime_train.config.parsed_config import Fault, Reading
from prime_train.core.findings import Severity
from prime_train.registry.foreign import named_keys
from prime_train.registry.foreign_keys import LegalKeys, legal_keys
from prime_train.rules.rule import file_rule
from prime_train.toml.did_you_mean import edit_distance, nearest
from prime_train.toml.document import value_at

_MOST_SHARE = 5  # of five letters, one may differ in a slip


@file_rule("KEY001", Severity.WARNING)
def key_that_does_not_exist(reading: Reading) -> Iterator[Fault]:
    """A key must be one that the program has.

    the program drops an unknown key without a word, or refuses the file

    A misspelt key is an error where the program refuses it. The names are those of one version of each program, so any
    other unknown key is a warning. A script of TRL or of the Hugging Face Trainer may have keys of its own: there, and
    among the flags of a command, only a misspelt key is reported.

    Source: registry/foreign/keys, with the commit of each program; axolotl, utils/config/__init__.py: validate_config;
    transformers, hf_argparser.py: parse_dict; accelerate, commands/config/config_args.py: from_yaml_file; DeepSpeed,
    runtime/config_utils.py: DeepSpeedConfigModel.

    Bad:
        # file axolotl.yaml
        base_model: m
        micro_batch_size: 2
        sequence_len: 2048
        gradient_accumulation_steps: 4
        lora_dropuot: 0.05
        datasets: [{path: d, type: alpaca}]
    Good:
        # file axolotl.yaml
        base_model: m
        micro_batch_size: 2
        sequence_len: 2048
        gradient_accumulation_steps: 4
        lora_dropout: 0.05
        datasets: [{path: d, type: alpaca}]
    """
    for part in reading.foreign or ():
        for table in legal_keys(part.format):
            yield from _faults(part, table)


def _faults(part: ForeignPart, table: LegalKeys) -> Iterator[Fault]:
    path = tuple(table.at.split(".")) if table.at else ()
    values = value_at(part.values, path) if path else part.values
    if not isinstance(values, Mapping):
        return
    # The names are of one version; a key that an entry of the format names existed in some version.
    known = table.names if path else table.names | named_keys(part.format)
    is_file = isinstance(part.document.written, YamlPlaces)
    is_closed = table.unknown != "open" and is_file and not _has_other_plugins(part, table)
    for key, value in values.items():
        if value is None or key in known or part.document.place((*part.at, *path, key)) is None:
            continue
        if not is_file and any(name.startswith(key) for name in known):
            continue  # argparse completes the beginning of a flag
        meant = _meant(key, table.names)
        if is_closed or (meant is not None and meant not in values):
            yield _fault(part, table, (*path, key), None if meant in values else meant)


def _fault(part: ForeignPart, table: LegalKeys, path: tuple[str, ...], meant: str | None) -> Fault:
    key, where = path[-1], f"{table.at} has" if table.at else "there is"
    return Fault(
        "KEY001",
        (*part.at, *path),
        f"{where} no key {key}; did you mean {meant}?" if meant else f"{where} no key {key}",
        f"write {meant}" if meant else f"take it out, or keep it if your version of the program has {key}",
        severity=Severity.ERROR if meant and table.unknown == "refused" else None,
        why=table.why,
        document=part.document,
    )


def _has_other_plugins(part: ForeignPart, table: LegalKeys) -> bool:
    plugins: Any = part.values.get("plugins") if table.own_plugins else None
    named = plugins if isinstance(plugins, list) else [plugins] if plugins else []
    return any(not str(plugin).startswith(table.own_plugins) for plugin in named)


def _meant(key: str, names: frozenset[str]) -> str | None:
    """The name that a key misspells; None if it is another word. An abbreviation is another word, too."""
    meant = nearest(key, names)
    if meant is None or key[:1] != meant[:1]:
        return None
    return meant if _MOST_SHARE * edit_distance(key.replace("-", "_"), meant) <= len(key) else None
