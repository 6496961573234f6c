"""The events of a run (`schema`), their lines (`record`), and the files that store them (`log`, `follower`).

Standard library only.
"""

from prime_train.events.damage import *  # noqa: F403
from prime_train.events.follower import *  # noqa: F403
from prime_train.events.log import *  # noqa: F403
from prime_train.events.record import *  # noqa: F403
from prime_train.events.schema import *  # noqa: F403
