"""Passes on what a dialect found wrong with the file itself: syntax, keys, types, bounds. Judges nothing itself."""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.dialects import reading as codes
from prime_train.dialects.reading import Fault, Reading
from prime_train.findings import Severity
from prime_train.rules.base import file_rule


def _of(reading: Reading, code: str) -> Iterator[Fault]:
    return (fault for fault in reading.faults if fault.code == code)


@file_rule(codes.SYNTAX, Severity.ERROR)
def not_toml(reading: Reading) -> Iterator[Fault]:
    """The file must be TOML.

    nothing in the file counts until all of it can be read

    Bad:
        [optim]
        lr = 1e-3e
    Good:
        [optim]
        lr = 1e-3
    """
    return _of(reading, codes.SYNTAX)


@file_rule(codes.UNKNOWN_KEY, Severity.ERROR)
def unknown_key(reading: Reading) -> Iterator[Fault]:
    """Every key must be one that is read.

    nothing reads this key: the run would go on with a default that nobody chose

    Bad:
        [batch]
        micro_bacth = 4
    Bad:
        [model]
        lr = 1e-3
    Bad:
        [optim]
        learning_rate = 1e-3
    Bad:
        [optimizer]
        weight_decay = 0.0
    Bad:
        [checkpoint]
        async_save = true
    Good:
        [optim]
        lr = 1e-3
    """
    return _of(reading, codes.UNKNOWN_KEY)


@file_rule(codes.WRONG_TYPE, Severity.ERROR)
def wrong_type(reading: Reading) -> Iterator[Fault]:
    """A value must have the type of its key.

    a value of another type would have to be guessed at, or fail in the trainer

    Bad:
        [optim]
        lr = "1e-3"
    Bad:
        [batch]
        micro_batch = 4.0
    Bad:
        [model]
        tie_embeddings = 1
    Bad:
        [eval]
        prompts = "def "
        interval_steps = 100
    Bad:
        model = "llama"
    Good:
        [optim]
        clip_norm = 1
    """
    return _of(reading, codes.WRONG_TYPE)


@file_rule(codes.OUT_OF_BOUNDS, Severity.ERROR)
def out_of_bounds(reading: Reading) -> Iterator[Fault]:
    """A number must lie within the bounds of its key.

    outside these bounds the value has no meaning, or the run ends in its first step

    Bad:
        [optim]
        lr = 0.0
    Bad:
        [eval]
        held_out_ratio = 0.5
    Bad:
        [data]
        sources = []
    Good:
        [optim]
        weight_decay = 0.0
    """
    return _of(reading, codes.OUT_OF_BOUNDS)


@file_rule(codes.NOT_A_CHOICE, Severity.ERROR)
def not_a_choice(reading: Reading) -> Iterator[Fault]:
    """A value must be one of those its key knows.

    there is no code behind any other value

    Bad:
        [precision]
        compute = "fp23"
    Bad:
        [schedule]
        kind = "cosin"
    Good:
        [precision]
        compute = "fp32"
    """
    return _of(reading, codes.NOT_A_CHOICE)


@file_rule(codes.MISSING_KEY, Severity.ERROR)
def missing_key(reading: Reading) -> Iterator[Fault]:
    """A key without a default must be there.

    no value fits every run, so none is assumed

    Bad:
        [[data.sources]]
        split = "train"
    Good:
        [[data.sources]]
        kind = "python-stdlib"
    """
    return _of(reading, codes.MISSING_KEY)
