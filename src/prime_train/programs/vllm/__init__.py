"""A vLLM server that serves alone. The bundled trainer starts the same server beside itself."""

from prime_train.programs.vllm.program import PROGRAM as PROGRAM
