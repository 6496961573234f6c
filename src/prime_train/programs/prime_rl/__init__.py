"""prime-rl, started by its own launcher `rl` or `sft`."""

from prime_train.programs.prime_rl.program import PROGRAM as PROGRAM
