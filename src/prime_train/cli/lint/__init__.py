"""`prime-train lint`, which may take half as long as check-jsonschema for one file; 1,000 files have no limit.

The objects are frozen before the end, and the garbage collector's threshold is raised, because nearly all of them stay
until then. `--help` may take 0.45 times as long (bench/startup.py, bench/lint_speed.py).
"""
