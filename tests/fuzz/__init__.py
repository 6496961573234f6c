"""Damages run directories and kills runs, from a seed, and judges what the commands then do.

`python -m tests.fuzz --seed S --cases N` damages copies of a few small runs and gives them to the commands: each case
has to end within a minute in a finish that is bit-equal to an undisturbed one, or in an error with four parts.
`python -m tests.fuzz.kills --seed S --cases N` kills supervisors and trainers, and `tests.fuzz.bucket_kills` also what
copies their checkpoints. `tests.fuzz.frames`, `answers` and `buckets` play what other machines, children, servers and
the owners of a bucket may send. All print each failure with the command that repeats it, and at the end one line of
JSON. The exit code is 1 if a case failed.

Most cases train with `hooks/arithmetic.py`, which is the real trainer's process with a training loop of hashes, because
importing torch takes 20 times as long as the rest of such a run. `--torch` uses the real loop.
"""
