"""Processes: started, found, signalled, ended; the lock of a run.

A process is ended only if it has the run's mark, is in the run's group, is below the supervisor, or writes to the log
of an attempt (vLLM's engine core overwrites the environment). Only the start sweeps what any supervisor has started.
Later sweeps take only those with this supervisor in `PRIME_TRAIN_SUPERVISOR`, because a supervisor that lost the lock
must spare the trainer of the next one. The holder of a lock must have the lock file open; a lock that is a link or a
pipe is refused. The holder removes temporary files and marks that ended processes left when it takes the lock and when
it releases it. A refused run leaves no directory behind.
"""
