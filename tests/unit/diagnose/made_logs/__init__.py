"""Logs of failing and healthy programs with the truth about each: what `diagnose` is judged on.

`truth/*.toml` holds a program per log and the verdict that a person expects, `logs/` what the program printed.
"""
