"""Configs that the stand-in runs, each on ports of its own."""

from __future__ import annotations

import socket
from pathlib import Path

_RL = """\
max_steps = {max_steps}

[prime_train]
prime_rl = "2026-08"
python = "{python}"
stop_grace_s = 30

[prime_train.restart]
backoff_s = 0.05

{ours}
[model]
name = "example/words"

[run]
name = "words"

[ckpt]
interval = 2

[orchestrator]
batch_size = 128
group_size = 16
renderer.name = "default"

[orchestrator.model.client]
base_url = "http://localhost:{port}/v1"

[[orchestrator.train.source]]
name = "words"
[orchestrator.train.source.env.taskset]
id = "words"

[trainer.optim]
lr = 3e-6

[inference.server]
port = {port}
"""
_MAY = """\
output_dir = "words"
max_steps = {max_steps}

[prime_train]
prime_rl = "2026-05"
python = "{python}"
[prime_train.restart]
backoff_s = 0.05
{ours}
[model]
name = "example/words"

[ckpt]
interval = 2

[orchestrator]
batch_size = 128
group_size = 16
renderer.name = "default"

[orchestrator.student.client]
base_url = ["http://localhost:{port}/v1"]

[[orchestrator.train.env]]
id = "words"
name = "words"

[trainer.optim]
lr = 3e-6

[inference.server]
port = {port}
"""
_SFT = """\
max_steps = {max_steps}
[prime_train]
prime_rl = "2026-08"
python = "{python}"
[prime_train.restart]
backoff_s = 0.05
{ours}
[run]
name = "words"

[ckpt]
interval = 2

[model]
name = "example/words"

[renderer]
name = "qwen3"

[data]
name = "example/texts"
"""
_TEXTS = {"rl": _RL, "may": _MAY, "sft": _SFT}


def config(kind: str, python: Path, max_steps: int = 12, ours: str = "") -> str:
    """The text of a config: "rl" and "sft" of 2026-08, "may" an `rl` of 2026-05. `ours`: tables of [prime_train]."""
    return _TEXTS[kind].format(python=python, port=_free_port(), max_steps=max_steps, ours=ours)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
