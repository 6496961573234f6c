"""Finds the one root cause in many logs: signatures, tracebacks, time. Pure; reads no file but the registry.

docs/adding.md explains how a cause is chosen and what a signature is. The speaker of a line is found before the
meaning. No words forgive a failure: only later steps of the log or the exit code 0 of the launcher do, because a batch
script writes "done" after a crash as well. What follows a stop is a consequence of it. A log with several attempts is
judged by the last one. The `retry` of a signature counts only in the traceback with which the log ends
(`Cause.decides`); elsewhere it is "yes", and after a signal or silence no log closes a run. A warning after which three
lines at info level follow is no cause, unless a process ends later. A time limit and a pre-emption have the class
`signal`. A log is healthy only if it reports completed work; else `diagnose` names the last line and exits with 4. If a
growing log is more than 4 MB ahead, only lines that may hold an error are looked at, and the report has how much was
skipped. Lines of a live run are placed by the time they were read, not by their own clocks. The guessed class of an
unknown exception was wrong in 11 of 35 fragments of strangers' logs, so the supervisor does not use it;
`bench/diagnose_verdicts.py` describes what the package is judged on.
"""
