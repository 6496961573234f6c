"""Collects the calls of a Python script that start and configure jax.distributed. Reads its syntax tree alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from prime_train.config.jax import python_source as source
from prime_train.config.parsed_config import WRONG_ARGUMENT, Fault
from prime_train.core.findings import Severity
from prime_train.spec.run_spec import JaxStart
from prime_train.toml.did_you_mean import nearest
from prime_train.toml.document import KeyPath, Place

START = "jax.distributed.initialize"
_ENVIRON = "os.environ"
# In positional order. Source: JAX 0.10.2, jax/_src/distributed.py.
_ARGUMENTS: dict[str, type] = {
    "coordinator_address": str,
    "num_processes": int,
    "process_id": int,
    "local_device_ids": tuple,
    "cluster_detection_method": str,
    "initialization_timeout": int,
    "heartbeat_timeout_seconds": int,
    "shutdown_timeout_seconds": int,
    "coordinator_bind_address": str,
    "slice_index": int,
    "partition_index": int,
}
FIELDS = {
    **{name: name for name in list(_ARGUMENTS)[:5]},
    "initialization_timeout": "initialization_timeout_s",
    "heartbeat_timeout_seconds": "heartbeat_timeout_s",
}
_TYPES = {str: "a string", int: "a whole number", tuple: "a list of whole numbers"}
_MAX_STARTS = 20
_MAX_SET = 500
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(slots=True)
class JaxCalls:
    """The collected calls of one script. A value None in `config` and `environment` is computed."""

    places: source.SourceColumns
    names: dict[str, str]
    starts: list[tuple[JaxStart, dict[str, Any]]] = field(default_factory=list)  # each with its literal arguments
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str | None] = field(default_factory=dict)
    environment_is_known: bool = True
    set_after_import: dict[str, None] = field(default_factory=dict)
    jax_line: int = 0
    written: dict[KeyPath, Place] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    several: bool = False

    def start_key(self, number: int) -> KeyPath:
        """The key of one start; with a number if there are several starts."""
        return ("jax", "distributed", "initialize", *((number,) if self.several else ()))


def collect_calls(text: str, nodes: list[ast.AST]) -> JaxCalls:
    """The calls of a script. `nodes` are all nodes of its syntax tree.

    The order of execution is not known, so a later line overrules an earlier one.
    """
    calls = JaxCalls(source.SourceColumns(text), source.read_imports(nodes))
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    calls.jax_line = min((node.lineno for node in imports if _is_jax(node)), default=0)
    statements = [node for node in nodes if isinstance(node, ast.Call | ast.Assign | ast.Delete)]
    statements.sort(key=lambda node: (node.lineno, node.col_offset))
    starts = [node for node in statements if isinstance(node, ast.Call) and _called_name(node, calls) == START]
    calls.several = len(starts) > 1
    for node in statements:
        match node:
            case ast.Call():
                _collect_call(calls, node)
            case ast.Assign(targets=[ast.Subscript(value=around, slice=key) as at], value=value):
                if source.full_name(around, calls.names) == _ENVIRON:
                    _set(calls, key, value, at)
            case ast.Delete(targets=targets):
                for target in targets:
                    if isinstance(target, ast.Subscript) and source.full_name(target.value, calls.names) == _ENVIRON:
                        calls.environment.pop(str(source.literal(target.slice)), None)
            case _:
                pass
    return calls


def _called_name(call: ast.Call, calls: JaxCalls) -> str:
    return source.full_name(call.func, calls.names)


def _is_jax(node: ast.Import | ast.ImportFrom) -> bool:
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return any(module.partition(".")[0] == "jax" for module in modules)


def _collect_call(calls: JaxCalls, call: ast.Call) -> None:
    match _called_name(call, calls), call.args:
        case "jax.distributed.initialize", _:
            if len(calls.starts) < _MAX_STARTS:
                _collect_start(calls, call)
        case (("jax.config.update" | "jax.config.config.update"), [ast.Constant(value=str() as name) as key, value]):
            if _NAME.fullmatch(name) and len(calls.config) < _MAX_SET:
                given = source.literal(value)
                calls.config[name] = None if given is source.COMPUTED else given
                calls.written["jax", "config", name] = calls.places.place(key, value)
        case "os.environ.setdefault", [key, value]:
            _set(calls, key, value, key)
        case "os.environ.pop", [key, *_]:
            calls.environment.pop(str(source.literal(key)), None)
        case "os.environ.update", arguments:
            _collect_update(calls, arguments, call.keywords)
        case _:
            pass


def _collect_update(calls: JaxCalls, arguments: list[ast.expr], keywords: list[ast.keyword]) -> None:
    for argument in arguments:
        if isinstance(argument, ast.Dict) and all(key is not None for key in argument.keys):
            for key, value in zip(argument.keys, argument.values, strict=True):
                if key is not None:
                    _set(calls, key, value, key)
        else:
            calls.environment_is_known = False
    for keyword in keywords:
        if keyword.arg is None:
            calls.environment_is_known = False
        else:
            _assign(calls, keyword.arg, keyword.value, keyword)


def _set(calls: JaxCalls, key: ast.expr, value: ast.expr, at: ast.expr) -> None:
    name = source.literal(key)
    if not isinstance(name, str):
        calls.environment_is_known = False
    else:
        _assign(calls, name, value, at)


def _assign(calls: JaxCalls, name: str, value: ast.expr, at: ast.expr | ast.keyword) -> None:
    if not _NAME.fullmatch(name) or len(calls.environment) >= _MAX_SET:
        return
    given = source.literal(value)
    calls.environment[name] = given if isinstance(given, str) else None
    if calls.jax_line and at.lineno > calls.jax_line:
        calls.set_after_import[name] = None
    hidden = isinstance(given, str) and "@" in given  # a proxy's login
    calls.written["os", "environ", name] = calls.places.place(at, value, hidden=hidden)


# --- one call ------------------------------------------------------------------------------------


def _collect_start(calls: JaxCalls, call: ast.Call) -> None:
    number = len(calls.starts)
    key = calls.start_key(number)
    at = calls.places.place(call.func, call.func, hidden=True)
    calls.written[key] = at
    calls.written.setdefault(("jax",), at)
    seen: dict[str, Any] = {}
    for name, value, node in _arguments(call):
        calls.written[(*key, name)] = calls.places.place(node, value)
        given = source.literal(value)
        if name not in _ARGUMENTS:
            calls.faults.append(_no_argument(key, name, f"jax.starts.{number}"))
        elif given is not None and given is not source.COMPUTED and not _fits(given, _ARGUMENTS[name]):
            calls.faults.append(_wrong_type(key, name, f"jax.starts.{number}"))
            given = source.COMPUTED
        if given is not None:
            seen[name] = given
    known = {FIELDS[name]: value for name, value in seen.items() if name in FIELDS}
    if isinstance(known.get("local_device_ids"), int):
        known["local_device_ids"] = (known["local_device_ids"],)
    more = any(isinstance(item, ast.Starred) for item in call.args) or any(item.arg is None for item in call.keywords)
    start = JaxStart(**{name: value for name, value in known.items() if value is not source.COMPUTED})
    literal_only = {name: value for name, value in seen.items() if value is not source.COMPUTED}
    start = start._replace(given=tuple(known), passes_more=more, numbered_by=_number_variable(call))
    calls.starts.append((start, literal_only))


def _number_variable(call: ast.Call) -> str | None:
    """The first text in a computed process_id: the variable in int(os.environ["SLURM_NODEID"])."""
    value = next((value for name, value, _ in _arguments(call) if name == "process_id"), None)
    if value is None or source.literal(value) is not source.COMPUTED:
        return None
    texts = (node.value for node in ast.walk(value) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return next((text for text in texts if _NAME.fullmatch(text)), None)


def _arguments(call: ast.Call) -> Iterator[tuple[str, ast.expr, ast.expr | ast.keyword]]:
    """(argument, value, its first node) for every argument that the call passes by position or name."""
    for name, value in zip(_ARGUMENTS, call.args, strict=False):
        if isinstance(value, ast.Starred):
            return
        yield name, value, value
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg, keyword.value, keyword


def _fits(value: Any, kind: type) -> bool:
    if kind is tuple:
        return isinstance(value, tuple | int)
    return isinstance(value, kind) and not isinstance(value, bool)


def _no_argument(key: KeyPath, name: str, start: str) -> Fault:
    meant = nearest(name, _ARGUMENTS)
    shadows = f"{start}.{FIELDS[meant]}" if meant in FIELDS else ""
    what = f"{START} takes no {name}" + (f"; did you mean {meant}?" if meant else " (JAX 0.10.2)")
    fix = f"{meant}=..." if meant else f"take {name} out"
    severity = None if meant else Severity.WARNING  # a later JAX may have it
    return Fault(WRONG_ARGUMENT, (*key, name), what, fix, shadows=shadows, severity=severity)


def _wrong_type(key: KeyPath, name: str, start: str) -> Fault:
    kind = _TYPES[_ARGUMENTS[name]]
    shadows = f"{start}.{FIELDS[name]}" if name in FIELDS else ""
    return Fault(WRONG_ARGUMENT, (*key, name), f"{name} is not {kind}", f"give {name} {kind}", shadows=shadows)
