"""Parses a rule's docstring: summary, reason, notes, Bad and Good examples. Pure.

    One line: the rule.

    One paragraph: why.

    Bad:
        a TOML overlay on BASE that makes this rule fire, and no other
    Good:
        a TOML overlay that is clean under every rule
    Bad (prime-rl 2026-08):
        the same on another of the BASES; `rl`, `sft` and `command` are those of a run.toml, `recipe` has a [recipe]

    Bad (script):
        a whole Python script
    Bad (jax):
        the end of a script that imports JAX and turns its preemption service off
    Bad:
        # file job.sh
        a whole file of another program, and after another such line a file beside it

A `[facts.NAME]` table in an overlay changes a fact of the machine; a GPU of it has the properties of an H200 that it
does not set. Paragraphs after the why are notes; one that begins with "Source:" names where the rule's numbers come
from.
"""

from __future__ import annotations

import re
from functools import lru_cache
from inspect import cleandoc
from typing import NamedTuple

from prime_train.rules.rule import Rule

BASE = """\
[run]
name = "example"
max_steps = 1000

[data]
ctx_tokens = 512

[[data.sources]]
kind = "python-stdlib"

[batch]
micro_batch = 8
"""

_RL_2026_08 = """\
max_steps = 200
seq_len = 4096

[run]
name = "example"

[model]
name = "Qwen/Qwen3-1.7B"

[ckpt]
interval = 50
keep_last = 2

[deployment]
num_train_gpus = 2
num_infer_gpus = 2

[trainer]

[orchestrator]
batch_size = 128
group_size = 16

[orchestrator.train.sampling]
max_completion_tokens = 1024

[[orchestrator.train.source]]
name = "reverse-text"

[orchestrator.train.source.env.taskset]
id = "reverse-text"

[orchestrator.train.source.env.agent.runtime]
type = "subprocess"

[inference.vllm]
max_model_len = 4096
data_parallel_size = 2
"""

_LORA_2026_08 = f"""{_RL_2026_08}
[trainer.model.lora]
rank = 16

[trainer.optim]
lr = 1e-5

[orchestrator.model.lora]
name = "adapter"
"""

_SFT_2026_08 = """\
max_steps = 200

[run]
name = "example"

[model]
name = "Qwen/Qwen3-1.7B"

[ckpt]
interval = 50
keep_last = 2

[data]
type = "sft"
name = "PrimeIntellect/Reverse-Text-SFT"
seq_len = 4096
batch_size = 32

[optim]
lr = 2e-5
"""

_INFERENCE_2026_08 = """\
[server]
port = 8000

[vllm]
model = "Qwen/Qwen3-1.7B"
revision = "70d244cc86ccca08cf5af4e1e306ecf908b1ad5e"
max_model_len = 4096
"""

_RL_2026_05 = """\
max_steps = 200
seq_len = 4096

[model]
name = "Qwen/Qwen3-1.7B"

[ckpt]
interval = 50
keep_last = 2

[deployment]
num_train_gpus = 2
num_infer_gpus = 2

[trainer]

[orchestrator]
batch_size = 128
group_size = 16

[orchestrator.train.sampling]
max_completion_tokens = 1024

[[orchestrator.train.env]]
id = "reverse-text"

[inference.model]
max_model_len = 4096

[inference.parallel]
dp = 2
"""

_RL_2026_01 = """\
max_steps = 200
seq_len = 4096
trainer_gpu_ids = [0, 1]
inference_gpu_ids = [2, 3]

[model]
name = "Qwen/Qwen3-1.7B"

[ckpt]
interval = 50
keep_last = 2

[trainer]

[orchestrator]
batch_size = 128
rollouts_per_example = 16

[orchestrator.sampling]
max_tokens = 1024

[[orchestrator.env]]
id = "reverse-text"

[inference.model]
max_model_len = 4096

[inference.parallel]
dp = 2
"""

_RL = """\
[run]
name = "example"
kind = "rl"
max_steps = 400

[data]
ctx_tokens = 128

[[tasks]]
kind = "reverse-text"

[batch]
micro_batch = 8
global_batch = 64

[rl]
warmup_steps = 40
"""

_SFT = """\
[run]
name = "example"
kind = "sft"
max_steps = 200

[data]
ctx_tokens = 512

[[data.sources]]
kind = "files"
path = "chats/*.jsonl"

[batch]
micro_batch = 8
"""

_RECIPE = """\
[recipe]
program = "llm.c"
model_name = "Qwen/Qwen3-0.6B"
gpus = 8
ctx_tokens = 4096
micro_batch = 1
"""

_COMMAND = """\
[run]
name = "example"
kind = "command"

[command]
argv = ["python", "train.py"]

[command.checkpoints]
dir = "out"
layout = "dcp"
"""

BASES = {
    "": BASE,
    "command": _COMMAND,
    "rl": _RL,
    "sft": _SFT,
    "recipe": _RECIPE,
    "prime-rl 2026-08": _RL_2026_08,
    "prime-rl 2026-08 lora": _LORA_2026_08,
    "prime-rl 2026-08 sft": _SFT_2026_08,
    "prime-rl 2026-08 inference": _INFERENCE_2026_08,
    "prime-rl 2026-05": _RL_2026_05,
    "prime-rl 2026-01": _RL_2026_01,
}

SCRIPT = "script"  # in the place of a base: the example is the whole file
FILE = "file"  # in the place of a base: the example has files, each after a line `# file NAME`

_JAX_START = """\
import jax

jax.config.update("jax_enable_preemption_service", False)
"""

_EXAMPLE = r"(?m)^(Bad|Good)(?: \(([^)\n]*)\))?:\n((?:(?:    .*)?\n)+)"


class Explanation(NamedTuple):
    """An example on another base than run.toml's begins with a comment that names it: `# prime-rl 2026-08`."""

    summary: str
    why: str
    notes: tuple[str, ...]
    bad: tuple[str, ...]
    good: tuple[str, ...]


@lru_cache(maxsize=256)
def explain(rule: Rule) -> Explanation:
    doc = cleandoc(rule.doc) + "\n"
    prose = re.sub(_EXAMPLE, "", doc)
    paragraphs = [" ".join(part.split()) for part in prose.split("\n\n") if part.strip()]
    examples = [(match.group(1), _example(match)) for match in re.finditer(_EXAMPLE, doc)]
    return Explanation(
        summary=paragraphs[0] if paragraphs else "",
        why=paragraphs[1] if len(paragraphs) > 1 else "",
        notes=tuple(paragraphs[2:]),
        bad=tuple(text for kind, text in examples if kind == "Bad"),
        good=tuple(text for kind, text in examples if kind == "Good"),
    )


def base_of(example: str) -> str:
    """The key in BASES of the config that an example is laid over; SCRIPT or FILE where it stands for itself."""
    first = example.partition("\n")[0].removeprefix("# ")
    if first.startswith(f"{FILE} "):
        return FILE
    return first if first in BASES or first == SCRIPT else ""


def files_of(example: str) -> dict[str, str]:
    """Name -> text of the files of an example; the first is the one that is judged."""
    pieces = re.split(rf"(?m)^# {FILE} (\S+)\n", example)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def _example(match: re.Match[str]) -> str:
    label, text = match.group(2), cleandoc(match.group(3)) + "\n"
    if label == "jax":
        imports_os = "import os\n\n" if "os." in text else ""
        return f"# {SCRIPT}\n{imports_os}{_JAX_START}{text}"
    return f"# {label}\n{text}" if label else text
