"""The trainer of this package, and the vLLM server beside it.

Everything that the trainer needs beyond the command line is in resolved.json. torchrun's `--standalone` serves a store
on every interface and unpickles what it receives, so the ranks on a machine meet over a file in the attempt's folder,
and rank 0 serves a store on 127.0.0.1. A request to stop is a file, because a file reaches every rank through any
launcher.
"""

from prime_train.programs.bundled.program import PROGRAM as PROGRAM
