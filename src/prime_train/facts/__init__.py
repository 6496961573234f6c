"""What is known of the machine: one probe for each fact, all in parallel. An unknown fact is never guessed.

- A rule may also use facts that only sharpen the judgement: the longest prompt is the registry's in a lint, and the
  longest row of the local data in a validate. A rule whose fact is a `NotKnown` is shown as skipped, with the reason.
- What can hang runs in a child with a deadline. A child that is stuck in the kernel is abandoned.
- The run's interpreter is not this one. A program that needs the standard library alone (`*_program.py`) runs in it.
- `--offline` opens no socket: ports come from `/proc/net/tcp`, repositories from the local cache. With `--gpus` the
  machine's other facts are not known.
- `validate --deep` starts what the run will start: a CUDA context, vLLM without weights, a timed write, the tasksets of
  verifiers. `run` does so before the first attempt, without the write, needs a GPU for the first two, and waits at most
  3 min; what is slower is no finding there, because the run has its own limit. A taskset scores one answer, because
  code is wrong more often than a config.
"""
