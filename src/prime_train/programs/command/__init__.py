"""Any command that trains: a trainer that this package did not write, by its profile in registry/trainers.

Nothing is guessed of a trainer. What neither a profile nor a config has is reported as not known: no step is claimed,
no checkpoint counts as complete, and nothing is deleted. `run -- COMMAND` derives a run.toml from the words of the
command (`derive`, `recognise`), which goes through the same checks as any other. `trainer` puts the profile and
run.toml together, `observer` writes the trainer's events out of the output and files, `judge` decides what the end
means.
"""

from prime_train.programs.command.program import PROGRAM as PROGRAM
