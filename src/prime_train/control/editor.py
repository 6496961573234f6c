"""Lists the settings of a run that change live, with value, bounds and obstacle, and judges a change. Changes nothing.

The keys are those of `spec/live_keys.py`, the bounds those of the schema, the verdict that of the supervisor's check.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from prime_train.control.timeline import shorten
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import MARK_BYTES, parse_json
from prime_train.core.plans import MOST_VALUES, list_versions, read_plans
from prime_train.core.python_child import own_module
from prime_train.core.rundir import RunDir

if TYPE_CHECKING:
    from prime_train.spec import RunSpec

Document = dict[str, Any]
_CHECK_S = 30.0  # the rules of a config take about a second
_VERSIONS_SHOWN = 200


def read_history(run_dir: RunDir) -> list[Document]:
    """The versions of live settings, oldest first. Damaged files are left out; a dropped one has no values."""
    behind = max(0, len(list_versions(run_dir.settings)) - _VERSIONS_SHOWN)
    return [shorten(asdict(plan)) for plan in islice(read_plans(run_dir.settings), behind, None)]


def read_editor(run_dir: RunDir) -> Document:
    """`keys`: key, value, effect, legal values, and why it cannot change, or None. `problem`: why there is no key."""
    # Here, because `top` has no editor, and the schema takes a third of a second.
    from prime_train.supervise.answers.check_settings import read_present

    try:
        config, present = read_present(run_dir)
        keys = (*_list_declared(run_dir, config), *_list_keys(present))
        return {"keys": shorten(keys), "problem": None}
    except UserError as error:
        return {"keys": [], "problem": shorten(f"{error.what}: {error.why}")}
    except (OSError, ValueError) as error:
        return {"keys": [], "problem": shorten(f"the settings cannot be read: {error}")}


def _list_keys(present: RunSpec) -> Iterator[Document]:
    from prime_train.config.schema import Number
    from prime_train.config.validate_value import expected
    from prime_train.spec.live_values import read_value
    from prime_train.supervise.answers.check_settings import find_obstacle, list_fields, list_live

    fields = list_fields()
    for each in list_live(present):
        item = fields[each.key]
        bounds = " and ".join(map(repr, item.shape.bounds)) if isinstance(item.shape, Number) else ""
        obstacle = find_obstacle(each.key, present, fields)
        yield {
            "key": each.key,
            "value": read_value(present, each.key),
            "effect": each.effect,
            "legal": ", ".join(part for part in (expected(item.shape), bounds) if part),
            "obstacle": None if obstacle is None else f"{obstacle.what}: {obstacle.why}",
        }


def _list_declared(run_dir: RunDir, config: RunSpec) -> Iterator[Document]:
    from prime_train.supervise.answers.check_settings import list_declared, read_declared

    values = read_declared(run_dir, list_declared(config))
    for each in list_declared(config):
        limits = ((">=", each.min), ("<=", each.max))
        bounds = [f"{sign} {limit:g}" for sign, limit in limits if limit is not None]
        kind = "a whole number" if each.whole else "a number"
        legal = ", ".join(part for part in (kind, " and ".join(bounds)) if part)
        about = {"effect": "the script takes it at its next step", "legal": legal, "obstacle": None}
        yield {"key": each.name, "value": values[each.name]} | about


def judge_change(run_dir: RunDir, text: str, step: int) -> Document:
    """What a change of settings would do: {"texts"}, or {"error"} in its four parts. Raises UserError.

    `text`: a JSON object of keys and values. `step`: the last one that the run has reported. Another program checks it,
    as for the supervisor, because the rules of a config would stay in the memory of this one.
    """
    try:
        values = parse_json(text)
    except ValueError as error:
        raise _fault(str(error)[:200]) from error
    if not isinstance(values, dict) or not 0 < len(values) <= MOST_VALUES:
        raise _fault(f"it is no JSON object with 1 to {MOST_VALUES} keys")
    order = json.dumps({"values": values, "step": step})
    command = own_module("prime_train.supervise.answers.check_settings", str(run_dir.path))
    try:
        done = subprocess.run(command, cwd="/", input=order.encode(), capture_output=True, timeout=_CHECK_S, check=True)
        found: Mapping[str, Any] = parse_json(done.stdout[:MARK_BYTES])
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        why, fix = f"its check failed: {type(error).__name__}", "apply it: the supervisor checks it again"
        raise UserError("the change is not judged", str(run_dir.path), why, fix, ExitCode.OUT_OF_REACH) from error
    error_parts = found.get("error")
    return {"error": shorten(error_parts)} if error_parts else {"texts": shorten(found["change"]["texts"])}


def _fault(why: str) -> UserError:
    return UserError("these are no values", "GET /api/preview", why, 'values={"optim.lr": 0.0002}')
