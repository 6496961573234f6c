"""The trainer of this package, and the vLLM server beside it."""

from prime_train.programs.bundled.program import PROGRAM as PROGRAM
