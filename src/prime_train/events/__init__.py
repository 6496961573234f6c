"""The events of a run: their kinds, their lines, and the files that store them. Standard library only.

Events are the only truth about a run: state comes from reading them, never from what a process remembers. A reader
leaves out and counts what does not fit: missing positions, damaged and foreign lines, files that are not regular.
`status` and the report name it, and the next supervisor writes `EventsDamaged`. Unknown kinds and versions are counted
and have no effect. A supervisor recognizes an event that it wrote by life and position, never by a highest number. A
clock that is set cannot reopen a finished run. An error that passes by itself is tried again for 15 s.

A long run has millions of records, so they are read one at a time (`Follower.stream`): only those that the supervisor
wrote are held, because these give the stage of all others. `Follower.near_end` reads the ends of the files. When a file
of more than a megabyte is read for the first time, only the first and the last consecutive Progress event is returned,
so a day of events is read in a second.
"""

from prime_train.events.follower import *  # noqa: F403
from prime_train.events.log import *  # noqa: F403
from prime_train.events.record import *  # noqa: F403
