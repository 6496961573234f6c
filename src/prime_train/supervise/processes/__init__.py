"""Processes: started, found, signalled, ended; the lock of a run."""
