"""Whether a run lives, judged from outside.

A bad verdict needs two polls that agree, 45 min and a second witness: system metrics, the run directory, the cloud's
queue. `resumable` needs the run's own report or a witness besides W&B, because a lost network looks like a dead run
there.
"""
