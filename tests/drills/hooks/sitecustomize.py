"""Python imports this at the start of each process whose PYTHONPATH has this folder: harms a trainer, and no other."""

import os
import sys

if os.environ.get("DRILL_HARM") and sys.orig_argv[1:3] == ["-m", "prime_train.trainer"]:
    import harm  # type: ignore[import-not-found]  # the folder is in PYTHONPATH

    harm.arm(os.environ["DRILL_HARM"])
