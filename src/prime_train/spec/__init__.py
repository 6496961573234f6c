"""The RunSpec: everything that the user requested, as one frozen value. No I/O, no defaults from the machine."""

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
