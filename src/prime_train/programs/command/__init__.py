"""Any command that trains: a trainer that this package did not write, by its profile in registry/trainers.

Nothing is guessed of a trainer. What no profile and no config says is reported as not known.
"""

from prime_train.programs.command.program import PROGRAM as PROGRAM
