"""The RunSpec: everything that the user requested, as one frozen value. No I/O, no defaults from the machine.

Rules, facts and estimates ask questions about a RunSpec (`model_name`, `train_gpus`, `write_root` and so on) and never
test which kind of file they judge. So another kind of config changes this package and no rule; only the estimate has
one module for each trainer. What can be trained is judged here, without torch, for rules, `verify-model` and the
trainer, and parameters are counted here, because the memory rule and the trainer must count the same.

The classes are dataclasses, because importing pydantic and building models for run.toml takes 128 ms, and 26 ms for the
same classes as frozen dataclasses. The schema is written once, as annotations that pydantic understands
(`Annotated[int, Gt(0), Doc(...)]`), and has two readers: `config` validates a file with positions and nearest names and
reports every fault, and pydantic validates resolved.json where the trainer reads it. A property test checks that the
two agree. The annotations stay texts until they are needed, because to evaluate them takes 2 ms.

- `run_spec`: the RunSpec, and its text in resolved.json. Its parts for a run.toml are in `run`, `model`, `data`, `rl`,
  `server` and `supervision`; their annotations are the schema of the file (`annotations`).
- `prime_rl_parts`: the parts of other formats, None for a run.toml.
- `answers`: the questions that other packages ask, as functions of a RunSpec: `train_gpus(run)`, `write_root(run)`.
- `decoder_size`, `hf_config` and `hf_families`: sizes and names of an architecture, and settings that do not go
  together.
"""

# ruff: noqa: F403 - every table of a subject is exported

from prime_train.spec.audio import *
from prime_train.spec.data import *
from prime_train.spec.model import *
from prime_train.spec.rl import Rl as Rl
from prime_train.spec.rl import TaskSource as TaskSource
from prime_train.spec.run import *
from prime_train.spec.run_spec import ENDLESS_STEPS as ENDLESS_STEPS
from prime_train.spec.run_spec import Format as Format
from prime_train.spec.run_spec import RunSpec as RunSpec
from prime_train.spec.run_spec import from_json as from_json
from prime_train.spec.run_spec import to_json as to_json
from prime_train.spec.server import Server as Server
from prime_train.spec.supervision import *
