"""Finds the errors of a file that a prime-rl newer than the newest table may not have. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prime_train.config.parsed_config import UNKNOWN_KEY, WRONG_TYPE, Fault
from prime_train.config.prime_rl.renames import is_later
from prime_train.config.prime_rl.validate import is_error
from prime_train.core.findings import NO_PATCH, Severity
from prime_train.toml.document import value_at


def doubt_errors(faults: Sequence[Fault], values: Mapping[str, Any], generation: str) -> list[Fault]:
    """The faults, with a warning in the place of each error that a newer prime-rl may not have.

    That is a key without a known one of a similar name, and a table where the newest generation has a plain value. An
    error of another kind shows that the file is not of a newer prime-rl: then all errors stay.
    """
    if any(fault.code not in (UNKNOWN_KEY, WRONG_TYPE) for fault in faults if is_error(fault)):
        return list(faults)
    return [_as_warning(fault, generation) if _may_be_newer(fault, values) else fault for fault in faults]


def _may_be_newer(fault: Fault, values: Mapping[str, Any]) -> bool:
    if not is_error(fault):
        return False
    if fault.code == WRONG_TYPE:
        value = value_at(values, fault.key)
        return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(each, dict) for each in value))
    return not fault.meant or is_later(fault.key)


def _as_warning(fault: Fault, generation: str) -> Fault:
    """The fault without a patch, which would take the key out of a file that is right."""
    newer = f"if your prime-rl is newer than {generation}: prime-train schema import --python PATH --keep"
    why = f"prime-rl refuses a key that it does not know, and no table here is newer than {generation}"
    return fault._replace(
        severity=Severity.WARNING, fix=f"{newer}; else {fault.fix}", why=why, patch=NO_PATCH, safe=False
    )
