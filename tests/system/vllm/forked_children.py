"""The server of forks imports this after vLLM: a vLLM server forks its engine core and its worker instead of spawning.

On a CPU vLLM chooses to spawn, whatever its settings.
"""

import multiprocessing
import multiprocessing.context

multiprocessing.context._concrete_contexts["spawn"] = multiprocessing.get_context("fork")  # type: ignore[attr-defined]
