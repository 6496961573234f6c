"""`prime-train run`, and what it does before a run starts.

A command reads the config once, judges it once and hands on the result; test_one_reading.py counts the calls.
`--dry-run` opens the run as `run` does, without the config's text: it refuses what `run` would refuse, and writes
nothing.
"""
