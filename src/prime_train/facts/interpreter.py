"""Reads which packages the run's interpreter has, in a child. Imports none of them in this process."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.util import find_spec

from prime_train.facts.facts import Interpreter, ModuleFault, NotKnown, Packages
from prime_train.facts.probe_process import run_probe, script

DEADLINE_S = 10.0  # an environment on a slow network disk
IMPORT_DEADLINE_S = 120.0  # a module may import torch and vLLM from a cold disk


def interpreter(
    python: str, distributions: Iterable[str], modules: Iterable[str], imported: Iterable[str] = ()
) -> Interpreter | NotKnown:
    """The `distributions` that `python` has, and the faults of `modules`; modules in `imported` are imported too."""
    imports = sorted(set(imported))
    request = {"distributions": sorted(set(distributions)), "modules": sorted(set(modules)), "imports": imports}
    deadline_s = IMPORT_DEADLINE_S if imports else DEADLINE_S
    answer = run_probe([python, script("interpreter_program")], deadline_s, stdin=json.dumps(request))
    if isinstance(answer, NotKnown):
        return answer
    lines = answer.out.splitlines()  # an imported module may print before the answer
    if answer.code != 0 or not lines:
        return NotKnown(f"{python} ended with exit code {answer.code}: {answer.last_line or 'no error message'}")
    try:
        output = json.loads(lines[-1])
        return Interpreter(
            python,
            output["version"],
            tuple(sorted(output["versions"].items())),
            tuple((name, requirement) for name, requirement in output["requirements"]),
            output["torch_cuda"],
            tuple(ModuleFault(name, fault) for name, fault in sorted(output["faults"].items())),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return NotKnown(f"{python} is not a Python interpreter: it answered {lines[-1][:80]!r}")


# Import names of the `train` extra in pyproject.toml.
TRAIN = ("torch", "numpy", "tokenizers", "safetensors", "pyarrow", "datasets", "transformers", "matplotlib")


def find_packages() -> Packages:
    return Packages(tuple(name for name in TRAIN if find_spec(name) is None))
