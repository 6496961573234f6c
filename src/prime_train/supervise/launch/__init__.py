"""What is started, as values: the Program protocol, launches, their environment, their GPUs, their run directory.

The kernel ties the parent-death signal, which a shim sets, to the thread that forked, so only the main thread spawns.
Beside guard and control group every rank watches `PRIME_TRAIN_SUPERVISOR` ("PID:START_TICKS") and ends itself when that
process is gone. Output goes directly to attempts/NNN/ROLE.log, without a pipe, so the log outlives the supervisor, and
a slow or dead supervisor neither blocks the child nor sends it SIGPIPE. A launch with `ready` is a service: the next
launch starts after `ServiceReady`. A variable that the user set stays, unless it does harm in that role. Each role gets
its own GPUs if there are enough.
"""
