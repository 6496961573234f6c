"""prime-rl, started by its own launcher `rl` or `sft` (docs/prime_rl.md).

It gets a copied config with an explicit complete step to resume from. It writes no events, so an observer reads the
logs, metrics and checkpoints and writes the kinds of events that the trainer writes: fold, policy and views see no
difference. It reads no request to stop, gets SIGTERM and a grace period, and saves nothing then.
"""

from prime_train.programs.prime_rl.program import PROGRAM as PROGRAM
