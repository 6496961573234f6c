"""prime-rl, started by its own launcher `rl` or `sft` (docs/prime_rl.md).

It gets a copy of the user's file with an explicit complete step to resume from. It writes no events, so an observer
writes the same kinds of events as the trainer from its logs, metrics and checkpoints: fold, policy and views see no
difference. It reads no request to stop, gets SIGTERM and a grace of its own, and saves nothing then.
"""

from prime_train.programs.prime_rl.program import PROGRAM as PROGRAM
