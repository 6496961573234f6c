"""Texts that nobody meant as a config: scraps, mutants, broken bytes, and large ones. Made from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable

SCRAPS = [
    *("[run]", "[[data.sources]]", "[data]", 'name = "x"', "max_steps = 5", "a.b.c", " = ", "1979-05-27", "nan", "inf"),
    *("[orchestrator]", "[inference.vllm]", "[[orchestrator.train.env]]", "prime_rl = '2026-08'", "[prime_train]"),
    *("=", "{", "}", "[", "]", '"', "'''", '"""', "\n", "\r\n", "#", "\x00", "\x85", "\ufeff", "é", "\U0001f600", "."),
    *("# prime-train: ignore[BAT001]", "# prime-train: ignore[", "9" * 40, "9" * 5000, "1e999", "-0", "0x", "_", ","),
]

SCRIPT = """\
'''Trains.'''
import os
import jax
from jax.experimental import multihost_utils as hosts

os.environ["https_proxy"] = "http://proxy:3128"  # prime-train: ignore[JAX008]
os.environ.update({"no_proxy": "localhost", "é": f"{1 + 1}"}, A="b")
jax.config.update("jax_enable_preemption_service", True)
if os.environ.get("FIRST"):
    jax.distributed.initialize("10.0.0.1:1234", 4, 0, [0, 1], initialization_timeout=5 * 60)
else:
    jax.distributed.initialize(
        coordinator_address=None, num_processes=int(os.environ["N"]), heartbeat_timeout_seconds=-1, **{}
    )
"""


def mutant(text: str, chance: random.Random) -> str:
    """A text with one to four stretches cut out, doubled, moved or replaced by scraps; sometimes with CRLF or a BOM."""
    for _ in range(chance.randint(1, 4)):
        start = chance.randint(0, len(text))
        end = min(len(text), start + chance.randint(0, 40))
        piece = text[start:end]
        match chance.randrange(4):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:end] + piece + text[end:]
            case 2:
                text = text[:start] + "".join(chance.choices(SCRAPS, k=chance.randint(1, 3))) + text[end:]
            case _:
                rest = text[:start] + text[end:]
                to = chance.randint(0, len(rest))
                text = rest[:to] + piece + rest[to:]
    if chance.random() < 0.1:
        text = text.replace("\n", "\r\n")
    return "\ufeff" + text if chance.random() < 0.05 else text


def broken(content: bytes, chance: random.Random) -> bytes:
    """Bytes with a few of them replaced by any other: mostly no UTF-8."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, 5)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


# Texts of about `size` characters, each hard in its own way.
LARGE_TEXTS: dict[str, Callable[[int], str]] = {
    "digits": lambda size: "x = " + "9" * size,
    "garbage": lambda size: "x" * size,
    "zeros": lambda size: "\x00" * size,
    "string": lambda size: 'x = "' + "é" * (size // 2) + '"',
    "open-string": lambda size: 'x = "' + "y" * size,
    "comment": lambda size: "# " + "x" * size,
    "ignores": lambda size: "k = 1\n" + "# prime-train: ignore[CFG003, CFG004]\n" * (size // 38),
    "array": lambda size: "x = [" + "1," * (size // 2) + "]",
    "inline": lambda size: "x = {" + ", ".join(f"k{n} = 1" for n in range(size // 12)) + "}",
    "deep-array": lambda size: "x = " + "[" * size,
    "deep-table": lambda size: "x = " + "{a=" * (size // 3),
    "deep-header": lambda size: "[" * size,
    "long-key": lambda size: ".".join(["a"] * (size // 2)) + " = 1",
    "quoted-key": lambda size: '"' + "k" * size + '" = 1',
    "keys": lambda size: "".join(f"k{n} = 1\n" for n in range(size // 10)),
    "tables": lambda size: "".join(f"[t{n}]\na = 1\n" for n in range(size // 14)),
    "elements": lambda size: "[[a]]\nb = 1\n" * (size // 12),
    "headers": lambda size: "".join(f"[[x{n}.{'.'.join(['a'] * 60)}]]\n" for n in range(size // 128)),
    "sources": lambda size: "[[data.sources]]\nkid = 1\n" * (size // 25),
    "faults": lambda size: "a = ]\n" * (size // 6),
    "late-fault": lambda size: "".join(f"k{n} = 1\n" for n in range(size // 10)) + "a = ]\n",
    "prime-rl-keys": lambda size: "[orchestrator]\n" + "".join(f"k{n} = 1\n" for n in range(size // 10)),
    "prime-rl-late-fault": lambda size: (
        "[orchestrator]\n" + "".join(f"k{n} = 1\n" for n in range(size // 10)) + "a = ]\n"
    ),
    "open-array": lambda size: "a = [\n" + "".join(f"k{n} = 1\n" for n in range(size // 10)),
    "open-text": lambda size: 'a = """\n' + "".join(f"k{n} = 1\n" for n in range(size // 10)),
    "carriage-returns": lambda size: "a = 1\r" * (size // 6),
    "blank": lambda size: "\n" * size,
}

_CALL = "jax.distributed.initialize(heartbeat_timeout_seconds=1)\n"
_ENDINGS: dict[str, Callable[[int], str]] = {
    "assignments": lambda size: "k=1\n" * (size // 4),
    "calls": lambda size: _CALL * (size // len(_CALL)),
    "one-line": lambda size: "'é';" + ";".join([_CALL.strip()] * (size // len(_CALL))),
    "variables": lambda size: "os.environ['a']='b'\n" * (size // 20),
    "ignores": lambda size: "# prime-train: ignore[JAX005]\n" * (size // 30),
    "dictionary": lambda size: "x={" + "1:1," * (size // 4) + "}",
    "fault": lambda size: "k=1\n" * (size // 4) + "x=]",
    "brackets": lambda size: "x=" + "(" * size,
    "sum": lambda size: "x=1" + "+1" * (size // 2),
    "attributes": lambda size: "x" + ".a" * (size // 2),
    "f-string": lambda size: "f'" + "{a}aaaaaaa" * (size // 10) + "'",
    "carriage-returns": lambda size: "k=1\r" * (size // 4),
}
LARGE_SCRIPTS = tuple(_ENDINGS)


def large_script(name: str, size: int) -> str:
    """A Python script of about `size` characters that starts jax.distributed and is hard in the way of that name."""
    return f"import jax,os\n{_CALL}{_ENDINGS[name](size)}\n"
