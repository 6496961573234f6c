"""A vLLM server that serves alone. The bundled trainer starts the same server beside itself.

The engine's watch is here and not beside the other watches, because only this program has an engine. A server whose
port is closed, or whose last answer was an error, does not recover: it has 15 s to end by itself, where one that only
hangs has a minute.
"""

from prime_train.programs.vllm.program import PROGRAM as PROGRAM
