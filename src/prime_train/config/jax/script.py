"""Reads a Python script that starts jax.distributed: its literal values become a RunSpec. Does not run it.

A computed value is not known, and no rule judges it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from prime_train.config.jax import python_source as source
from prime_train.config.jax.jax_calls import FIELDS, START, JaxCalls, collect_calls
from prime_train.config.parsed_config import SYNTAX, Fault, Reading
from prime_train.core.errors import UserError
from prime_train.spec import ENDLESS_STEPS, Data, Run, RunSpec
from prime_train.spec.run_spec import Jax
from prime_train.toml.document import Document, SyntaxFault, WrittenPlaces

DIALECT = "script"
ROOT = "jax"

# With one of these names a script notices a preemption or handles SIGTERM; orbax's manager checks at each step.
_PREEMPTION_NAMES = frozenset({"reached_preemption_sync_point", "reached_preemption", "CheckpointManager", "SIGTERM"})
_MAX_CHARS = 200_000  # a syntax tree takes several hundred times the memory of its text (measured: one second)
_MAX_BRACES = 20_000  # in an f-string, the time of Python 3.11's parser grows with their square


def may_start_jax(text: str) -> bool:
    """Whether a Python text starts jax.distributed, or may start it but cannot be parsed."""
    if _is_too_large(text) or not _mentions_a_start(text):
        return False
    tree = source.parse(text)
    return isinstance(tree, SyntaxFault) or bool(collect_calls(text, list(ast.walk(tree))).starts)


def read(text: str, path: str) -> Reading:
    """The reading of a script. Raises UserError if it does not start jax.distributed, or is too large."""
    if _is_too_large(text):
        raise _not_a_jax_script(path, f"it is larger than any: {len(text)} characters, {text.count('{')} braces")
    if not _mentions_a_start(text):
        raise _not_a_jax_script(path)
    tree = source.parse(text)
    if isinstance(tree, SyntaxFault):
        return _unread(text, path, tree)
    nodes = list(ast.walk(tree))
    calls = collect_calls(text, nodes)
    if not calls.starts:
        raise _not_a_jax_script(path)
    document = Document(text, path, _values(calls), written=WrittenPlaces(calls.written, source.comments(text, tree)))
    jax = Jax(
        starts=tuple(start for start, _ in calls.starts),
        config=calls.config,
        environment=calls.environment,
        environment_is_known=calls.environment_is_known,
        set_after_import=tuple(calls.set_after_import),
        answers_preemption=_handles_preemption(nodes),
    )
    run = RunSpec(run=Run(name="script", max_steps=ENDLESS_STEPS), data=Data(sources=()), jax=jax, format="script")
    return Reading(document, DIALECT, "", ROOT, run, tuple(calls.faults), dict(_keys(calls)), all_fields=False)


def _is_too_large(text: str) -> bool:
    return len(text) > _MAX_CHARS or text.count("{") > _MAX_BRACES


def _mentions_a_start(text: str) -> bool:
    return "jax" in text and "distributed" in text and "initialize" in text


def _unread(text: str, path: str, why: SyntaxFault) -> Reading:
    fault = Fault(SYNTAX, (), why.what, "correct the line, or lint with the Python that is to run it")
    document = Document(text, path, {}, why, written=WrittenPlaces({}, ()))
    return Reading(document, DIALECT, "", ROOT, None, (fault,), {}, all_fields=False)


def _not_a_jax_script(path: str, why: str = "") -> UserError:
    return UserError(
        what="it is no script that lint can judge",
        where=path,
        why=why or f"of Python, lint reads scripts that call {START} themselves",
        fix="name the script that calls it, or the config file of the run",
    )


def _handles_preemption(nodes: list[ast.AST]) -> bool:
    """Whether the script checks for a preemption notice, or has its own handler."""
    names = {getattr(node, field, None) for node in nodes for field in ("attr", "id")}
    names |= {node.name.rpartition(".")[2] for node in nodes if isinstance(node, ast.alias)}
    return not _PREEMPTION_NAMES.isdisjoint(names)


# --- keys ----------------------------------------------------------------------------------------


def _values(calls: JaxCalls) -> dict[str, Any]:
    """The literal values, nested by their keys."""
    starts = [values for _, values in calls.starts]
    jax = {"distributed": {"initialize": starts if calls.several else starts[0]}, "config": calls.config}
    return {"jax": jax, "os": {"environ": calls.environment}}


def _keys(calls: JaxCalls) -> Iterator[tuple[str, str]]:
    """(RunSpec field, the key that sets it in the script) pairs."""
    for number in range(len(calls.starts)):
        around = ".".join(str(part) for part in calls.start_key(number))
        for argument, name in FIELDS.items():
            yield f"jax.starts.{number}.{name}", f"{around}.{argument}"
    for name in {"jax_enable_preemption_service", *calls.config}:
        yield f"jax.config.{name}", f"jax.config.{name}"
    for name in calls.environment:
        yield f"jax.environment.{name}", f"os.environ.{name}"
