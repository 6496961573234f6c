"""A stand-in for torchtitan as a program of prime-train: this folder is all that a new program needs.

test_new_program.py copies it into a copy of the package, and adds its name to `spec.ProgramName`.
"""

from .program import PROGRAM as PROGRAM
