"""The events of a run (`schema`), and the files that store them (`log`). Standard library only."""

from prime_train.events.log import *  # noqa: F403
from prime_train.events.schema import *  # noqa: F403
