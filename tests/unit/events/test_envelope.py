"""No field of an event has the name of a part of the envelope, which it would replace in its line."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

import pytest

from prime_train.events.record import Event

ENVELOPE = {"v", "t", "w", "n", "id", "kind", "c"}


@pytest.mark.parametrize("kind", get_args(Event))
def test_a_field_keeps_the_envelope(kind: type[Event]) -> None:
    assert ENVELOPE.isdisjoint(field.name for field in fields(kind))
