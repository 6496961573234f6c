"""`prime-train lint`. One file may take 0.5 times as long as check-jsonschema; a folder has no limit.

The garbage collector's threshold is raised, and the objects are frozen before the end, because nearly all of them stay
until then. `--help` may take 0.45 times as long (bench/startup.py). bench/record.py has these limits.
"""
