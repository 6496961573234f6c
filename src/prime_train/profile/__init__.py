"""Where the time of a training step goes: spans to critical path, measurement, diagnosis, recommendations. Pure.

With `PRIME_TRAIN_SPANS` set, trainer, engine and environments write spans, all on the machine's monotonic clock. Each
moment of the window belongs to one component, so the shares add up to the wall time and hidden work counts nothing. A
span of the CPU has its CPU time too, because a process that computes without it waits for a core.
"""
