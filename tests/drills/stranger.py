"""A user of a machine of the run, who knows the address and the port of machine 0 and not the secret.

    stranger.py ADDRESS PORT SEED

Sends hostile bytes, half handshakes, wrong passwords and floods to the port until it is ended, and prints a line for
each. Whatever the answer is, it goes on.
"""

from __future__ import annotations

import json
import random
import socket
import ssl
import sys
import time
from contextlib import suppress

_ANSWER_S = 0.2
_HELLO = (
    bytes.fromhex("160301020001 0001fc0303") + b"\x00" * 40
)  # the beginning of a TLS hello, of which the rest never comes
_STOP = (
    b'{"id":"x","body":{"from":"x","to":"","number":1,"heard":0,"message":{"kind":"stop","by":"x"},"is_last":false}}'
)


def make_bytes(draw: random.Random) -> bytes:
    """What is sent without TLS."""
    return draw.choice(
        [
            b"\0" * 100_000,
            b"[" * 50_000 + b"\n",
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b'CONNECT {"verbose":false}\r\nPING\r\n' * 100,
            b'{"kind": "stop", "by": "SIGTERM"}\n' * 5_000,
            _HELLO,
            draw.randbytes(2_000),
        ]
    )


def make_lines(draw: random.Random) -> bytes:
    """What is sent after a handshake, for which no secret is needed: a wrong user, and what it would like to do."""
    user = draw.choice(
        ["controller", "machine-0", "machine-1", "machine-2", "system", "", "x" * 5_000, "\u2028\x1b[2J"]
    )
    options: dict[str, object] = {"user": user, "pass": draw.choice(["", "0" * 64, user]), "verbose": True}
    if draw.random() < 0.3:
        options = {draw.choice(["auth_token", "jwt", "nkey", "no_responders"]): draw.choice(["x", True, [], 2**70])}
    connect = b"CONNECT " + json.dumps(options).encode() + b"\r\n"
    subject = draw.choice(["pt.machines.r.machine-1.link", "pt.machines.cmd.machine-1", "$SYS.REQ.SERVER.PING"])
    publish = f"PUB {subject} {len(_STOP)}\r\n".encode() + _STOP + b"\r\n"
    return (connect if draw.random() < 0.8 else b"") + b"SUB > 1\r\nPING\r\n" + publish * draw.choice([1, 500])


def attack(address: str, port: int, draw: random.Random) -> str:
    """One connection, or forty at once. Returns what came back last."""
    count = 40 if draw.random() < 0.2 else 1
    opened: list[socket.socket] = []
    answer = b""
    try:
        for _ in range(count):
            with suppress(OSError):
                opened.append(socket.create_connection((address, port), 1.0))
        speaks_tls = draw.random() < 0.6
        for place, one in enumerate(opened):
            one.settimeout(_ANSWER_S)
            with suppress(OSError):  # ssl.SSLError is one, too
                if speaks_tls:
                    one.settimeout(2.0)
                    opened[place] = one = ssl._create_unverified_context().wrap_socket(one)
                    one.settimeout(_ANSWER_S)
                one.sendall(make_lines(draw) if speaks_tls else make_bytes(draw))
                while found := one.recv(65_536):
                    answer = found
    finally:
        for one in opened:
            one.close()
    return f"{len(opened)} of {count} connected, last answer {answer[-80:]!r}"


def main(address: str, port: int, seed: int) -> None:
    draw = random.Random(seed)
    while True:
        sys.stdout.write(attack(address, port, draw) + "\n")
        sys.stdout.flush()
        time.sleep(draw.uniform(0.0, 0.3))  # the rhythm of a stranger is an input, and no event to wait for


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
