"""Creates a CUDA context in a child with the run's interpreter. This process never loads torch or CUDA."""

from __future__ import annotations

from prime_train.facts.child import run_probe
from prime_train.facts.facts import CudaContext, NotKnown

CUDA_DEADLINE_S = 120.0  # importing torch from a cold disk, then a context on each of eight GPUs

_PROGRAM = """
import torch
if not torch.cuda.is_available():
    torch.cuda.init()  # raises the reason
for index in range(torch.cuda.device_count()):
    with torch.cuda.device(index):
        torch.ones(8, device="cuda").sum().item()
print(torch.cuda.device_count())
"""


def create_cuda_context(python: str, deadline_s: float = CUDA_DEADLINE_S) -> CudaContext | NotKnown:
    """Whether torch computes on every GPU; `failure` is the error of CUDA."""
    answer = run_probe([python, "-c", _PROGRAM], deadline_s)
    if isinstance(answer, NotKnown):
        if answer.reason.startswith("no answer"):
            return CudaContext(0, f"torch created no CUDA context within {deadline_s:g} s")
        return answer
    if answer.code == 0 and answer.out.strip().isdigit():
        return CudaContext(int(answer.out), "")
    if "No module named 'torch'" in answer.last_line:
        return NotKnown(f"{python} has no torch")
    return CudaContext(0, answer.last_line or f"the child ended with exit code {answer.code}")
