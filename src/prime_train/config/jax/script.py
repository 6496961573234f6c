"""A Python script that starts jax.distributed: a text becomes a RunSpec of what it says literally. Runs nothing of it.

What is computed is not known, and no rule speaks of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from prime_train.config.jax import python_source as source
from prime_train.config.jax.script_calls import FIELDS, START, Said, collected
from prime_train.config.parsed_config import SYNTAX, Fault, Reading
from prime_train.core.errors import UserError
from prime_train.spec import ENDLESS_STEPS, Data, Run, RunSpec
from prime_train.spec.jax import Jax
from prime_train.toml.document import Document, SyntaxFault, Written

DIALECT = "script"
ROOT = "jax"

# Who names one of these is told of a preemption, or takes SIGTERM itself; orbax's manager asks at each step.
_ANSWERS = frozenset({"reached_preemption_sync_point", "reached_preemption", "CheckpointManager", "SIGTERM"})
_MAX_CHARS = 200_000  # a syntax tree takes several hundred times the memory of its text (measured: a second for these)
_MAX_BRACES = 20_000  # the parser of Python 3.11 takes time by the square of those in an f-string


def may_start_jax(text: str) -> bool:
    """Whether a Python text starts jax.distributed, or may be meant to where it cannot be parsed."""
    if _is_too_large(text) or not _mentions_a_start(text):
        return False
    tree = source.parsed(text)
    return isinstance(tree, SyntaxFault) or bool(collected(text, list(ast.walk(tree))).starts)


def read(text: str, path: str) -> Reading:
    """The reading of a script. Raises UserError where it is none that starts jax.distributed, or too large for one."""
    if _is_too_large(text):
        raise _not_ours(path, f"it is larger than any: {len(text)} characters, {text.count('{')} braces")
    if not _mentions_a_start(text):
        raise _not_ours(path)
    tree = source.parsed(text)
    if isinstance(tree, SyntaxFault):
        return _unread(text, path, tree)
    nodes = list(ast.walk(tree))
    said = collected(text, nodes)
    if not said.starts:
        raise _not_ours(path)
    document = Document(text, path, _values(said), written=Written(said.written, source.comments(text, tree)))
    jax = Jax(
        starts=tuple(start for start, _ in said.starts),
        config=said.config,
        environment=said.environment,
        environment_is_known=said.environment_is_known,
        set_after_import=tuple(said.set_after_import),
        answers_preemption=_answers(nodes),
    )
    run = RunSpec(run=Run(name="script", max_steps=ENDLESS_STEPS), data=Data(sources=()), jax=jax)
    return Reading(document, DIALECT, "", ROOT, run, tuple(said.faults), dict(_keys(said)), all_fields=False)


def _is_too_large(text: str) -> bool:
    return len(text) > _MAX_CHARS or text.count("{") > _MAX_BRACES


def _mentions_a_start(text: str) -> bool:
    return "jax" in text and "distributed" in text and "initialize" in text


def _unread(text: str, path: str, why: SyntaxFault) -> Reading:
    fault = Fault(SYNTAX, (), why.what, "correct the line, or lint with the Python that is to run it")
    document = Document(text, path, {}, why, written=Written({}, ()))
    return Reading(document, DIALECT, "", ROOT, None, (fault,), {}, all_fields=False)


def _not_ours(path: str, why: str = "") -> UserError:
    return UserError(
        what="it is no script that lint can judge",
        where=path,
        why=why or f"of Python, lint reads scripts that call {START} themselves",
        fix="name the script that calls it, or the config file of the run",
    )


def _answers(nodes: list[ast.AST]) -> bool:
    """Whether anything in the script asks for the preemption notice, or has a handler of its own."""
    return any(
        getattr(node, "attr", None) in _ANSWERS or getattr(node, "id", None) in _ANSWERS or _imports_answer(node)
        for node in nodes
    )


def _imports_answer(node: ast.AST) -> bool:
    return isinstance(node, ast.alias) and node.name.rpartition(".")[2] in _ANSWERS


# --- keys ----------------------------------------------------------------------------------------


def _values(said: Said) -> dict[str, Any]:
    """The literals, nested as their keys are."""
    starts = [values for _, values in said.starts]
    jax = {"distributed": {"initialize": starts if said.several else starts[0]}, "config": said.config}
    return {"jax": jax, "os": {"environ": said.environment}}


def _keys(said: Said) -> Iterator[tuple[str, str]]:
    """RunSpec field -> where the script says it, or would say it."""
    for number in range(len(said.starts)):
        around = ".".join(str(part) for part in said.start_key(number))
        for argument, name in FIELDS.items():
            yield f"jax.starts.{number}.{name}", f"{around}.{argument}"
    for name in {"jax_enable_preemption_service", *said.config}:
        yield f"jax.config.{name}", f"jax.config.{name}"
    for name in said.environment:
        yield f"jax.environment.{name}", f"os.environ.{name}"
