"""Any command that trains: a trainer that this package did not write, by a profile in registry/trainers.

Nothing is guessed of a trainer. What no profile and no config states is reported as not known.
"""

from prime_train.programs.command.program import PROGRAM as PROGRAM
