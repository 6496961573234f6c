"""Python imports this at the start of each process whose PYTHONPATH has this folder.

A trainer, and the torchrun of one, becomes a fork of a server that has imported torch; see tests/fork_server.py.
"""

import os
import sys

_FORKED = ("prime_train.trainer", "torch.distributed.run", "tests.system.profile.planted_trainer")


def _is_forked(words: list[str]) -> bool:
    if words[1:2] != ["-m"] or words[2] not in _FORKED or "--attempt" not in words:
        return False
    attempt = int(words[words.index("--attempt") + 1])
    return attempt >= int(os.environ["FORK_FROM_ATTEMPT"]) and os.environ["FORK_COMMAND"] != sys.executable


if _is_forked(sys.orig_argv):
    command = os.environ["PYTHON_EXEC"] = os.environ["FORK_COMMAND"]  # torchrun starts its ranks with the former
    os.execv(command, [command, *sys.orig_argv[1:]])
