"""When the other side of a link counts as lost. No I/O, no clock."""

from __future__ import annotations

ALIVE_S = 1.0  # between signs of life; several within GONE_S
LOST_S = 60.0  # without one: the machine, or the network to it, is gone
GONE_S = 5.0  # without a connection while the host answers: the process is gone. A server starts again within two


def judge_link(now_s: float, heard_s: float, gone_since_s: float | None) -> str:
    """Why the other side is lost; "" while it is waited for.

    `gone_since_s`: since when it is known to have no connection; None if it has one, or if that is not known, as where
    a network is cut. A server that restarts ends all connections, so the end of one alone is no loss.
    """
    if gone_since_s is not None and now_s - gone_since_s > GONE_S:
        return "its connection has ended"
    if now_s - heard_s > LOST_S:
        return f"no sign of life for {LOST_S:.0f} s"
    return ""
