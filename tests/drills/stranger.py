"""A user of a machine of the run, who knows the address and the port of machine 0 and not the secret.

    stranger.py ADDRESS PORT SEED

Sends hostile joins and floods to the port until it is ended, and prints a line for each. Whatever the answer is, it
goes on.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import time
from contextlib import suppress
from typing import Any

_ANSWER_S = 0.2


def make_join(draw: random.Random, nonce: str) -> dict[str, Any]:
    """A join in which something is wrong, or everything but the proof is right."""
    join: dict[str, Any] = {
        "kind": "join",
        "rank": draw.choice([0, 1, 2, -1, 10**6]),
        "config": draw.choice(["", "0" * 64, nonce]),
        "version": draw.choice(["0.0.1", "0.1.0", "9" * 99]),
        "nonce": draw.choice([nonce, "", "a" * 32]),
        "proof": draw.choice(["", nonce, "0" * 64, "\ud800"]),
    }
    for _ in range(draw.randint(0, 2)):
        join[draw.choice(sorted(join))] = draw.choice([None, [], {}, 1.5, True, "x", 2**70])
    return join


def make_lines(draw: random.Random, nonce: str) -> bytes:
    """What is sent after the challenge."""
    match draw.randrange(8):
        case 0:
            return json.dumps(make_join(draw, nonce)).encode() + b"\n"
        case 1:
            return b'{"kind": "stop", "by": "SIGTERM"}\n{"kind": "exited", "code": 0}\n'
        case 2:
            return b"\0" * 100_000
        case 3:
            return b"[" * 50_000 + b"\n"
        case 4:
            return b'{"kind": "alive"}\n' * 5_000
        case 5:
            return b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
        case 6:
            return b'{"kind": "event", "line": "' + b"x" * 200_000 + b'"}\n'
        case _:
            return (json.dumps(make_join(draw, nonce)) + "\n").encode() * 200


def attack(address: str, port: int, draw: random.Random) -> str:
    """One connection, or forty at once. Returns what came back first."""
    count = 40 if draw.random() < 0.2 else 1
    opened: list[socket.socket] = []
    answer = b""
    try:
        for _ in range(count):
            with suppress(OSError):
                opened.append(socket.create_connection((address, port), 1.0))
        for one in opened:
            one.settimeout(_ANSWER_S)
            with suppress(OSError):
                answer = one.recv(4096)
                nonce = json.loads(answer).get("nonce", "") if answer.startswith(b"{") else ""
                one.sendall(make_lines(draw, nonce))
                answer = one.recv(4096) or answer
    except ValueError:
        pass
    finally:
        for one in opened:
            one.close()
    return f"{len(opened)} of {count} connected, last answer {answer[:60]!r}"


def main(address: str, port: int, seed: int) -> None:
    draw = random.Random(seed)
    while True:
        sys.stdout.write(attack(address, port, draw) + "\n")
        sys.stdout.flush()
        time.sleep(draw.uniform(0.0, 0.3))  # the rhythm of a stranger is an input, and no event to wait for


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
