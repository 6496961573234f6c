"""Python imports this at the start of each process whose PYTHONPATH has this folder: harms a trainer, and no other.

The trainer of an attempt that is not harmed is forked; see tests/fork_server.py.
"""

import os
import sys

# torchrun starts its workers with -u.
if [word for word in sys.orig_argv[1:4] if word != "-u"][:2] == ["-m", "prime_train.trainer"]:
    is_first = sys.orig_argv[sys.orig_argv.index("--attempt") + 1] == "1"
    command = os.environ["FORK_COMMAND"]
    if os.environ.get("DRILL_HARM") and is_first:
        import harm  # type: ignore[import-not-found]  # the folder is in PYTHONPATH

        harm.arm(os.environ["DRILL_HARM"])
    elif command != sys.executable:
        os.execv(command, [command, *sys.orig_argv[1:]])
