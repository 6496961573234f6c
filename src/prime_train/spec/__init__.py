"""The RunSpec: everything that the user requested, as one frozen value. No I/O, no defaults from the machine.

- `run_spec`: the RunSpec, which has fields only. Its parts for a run.toml are in `run`, `model`, `data`, `evaluation`,
  `rl`, `server` and `supervision`; their annotations are the schema of the file (`annotations`).
- `prime_rl_parts` and `jax`: the parts of other formats, None for a run.toml.
- `answers`: the questions that other packages ask, as functions of a RunSpec: `train_gpus(run)`, `write_root(run)`.
  `traits` has what is the same for all configs of one format.
- `resolved`: a RunSpec as the text of resolved.json, and back.
- `trainable` and `fp8`: the settings that do not go together; `decoder_size`, `hf_config` and `hf_families`: sizes and
  names of an architecture.

The classes are dataclasses, because pydantic models are too slow for a lint. This module only exports.
"""

# ruff: noqa: F403 - every table of a subject is exported

from prime_train.spec.data import *
from prime_train.spec.evaluation import *
from prime_train.spec.model import *
from prime_train.spec.resolved import from_json as from_json
from prime_train.spec.resolved import to_json as to_json
from prime_train.spec.rl import Rl as Rl
from prime_train.spec.rl import TaskSource as TaskSource
from prime_train.spec.run import *
from prime_train.spec.run_spec import ENDLESS_STEPS as ENDLESS_STEPS
from prime_train.spec.run_spec import Format as Format
from prime_train.spec.run_spec import RunSpec as RunSpec
from prime_train.spec.server import Server as Server
from prime_train.spec.supervision import *
