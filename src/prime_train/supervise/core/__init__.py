"""The loop, the state that events give, and the decisions.

Every action is written as an event before it is done, and state comes only from reading events, so a restarted
supervisor has the same state. If an event cannot be read back (the run directory was deleted), the run ends. The
supervisor's own launches are limited without any event. `events/snapshot.json` is for views: a supervisor reads events.
`LaunchAsked` is written before a spawn, `ChildStarted` after it.

`ClockJumped` is written when the wall clock and the monotonic clock differ by more than 5 s (a laptop slept, a clock
was set). Deadlines move by the same amount, so a jump is no hang.
"""
