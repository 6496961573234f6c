"""Runs torchft's lighthouse, which knows the replicas that live: `python -m prime_train.trainer.replicas.lighthouse`.

Prints the address, and exits when its input is closed, which is when the launcher ends. Listens on 127.0.0.1, because a
request to it needs no secret and can end a replica. A run on several machines has it on the address of machine 0, which
is to be that of a private network.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

from prime_train.core.machines import LOOPBACK

HEARTBEAT_S = 0.4  # between two of a replica; torchft's 0.1 costs a core 0.5 % more
HEARTBEAT_LIMIT_MS = 2000  # a replica is lost without a heartbeat for so long
_JOIN_LIMIT_S = 60.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m prime_train.trainer.replicas.lighthouse", description="Run it.")
    parser.add_argument("--min-replicas", type=int, default=1, help="replicas without which there is no step")
    waits = "seconds for a replica that lives and has not come to the step"
    parser.add_argument("--join-limit-s", type=float, default=_JOIN_LIMIT_S, help=waits)
    parser.add_argument("--host", default=LOOPBACK, help="address to listen on")
    given = parser.parse_args(arguments)
    server = load_coordination().LighthouseServer(
        bind=f"{given.host}:0",
        min_replicas=given.min_replicas,
        join_timeout_ms=round(1000 * given.join_limit_s),
        heartbeat_timeout_ms=HEARTBEAT_LIMIT_MS,
    )
    # Its own address has the name of the machine, under which it does not listen.
    sys.stdout.write(f"http://{given.host}:{urlsplit(server.address()).port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.shutdown()
    return 0


def load_coordination() -> ModuleType:
    """The compiled part of torchft without the package around it, which imports torch: that would take seconds."""
    package = importlib.util.find_spec("torchft")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("torchft")
    found = next(Path(package.submodule_search_locations[0]).glob("_torchft*.so"))
    loader = ExtensionFileLoader("_torchft", str(found))
    spec = importlib.util.spec_from_loader("_torchft", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
