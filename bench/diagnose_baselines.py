"""Three ways to find the line of a failure without `diagnose`, for bench/diagnose_verdicts.py: lines to a line number.

The last traceback, the first line with a word of an error, and what the deterministic part of nvidia-resiliency-ext
looks for. Its rows are written here in short words from the registry of its restart agent
(src/nvidia_resiliency_ext/attribution/restart_agent/l0/registry.py, commit 2c822336, read 2026-11-23); the package on
PyPI, 0.4.1, has none of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

Baseline = Callable[[Sequence[str]], int]  # the number of a line, from 1; 0 for no failure

_HEADER = "Traceback (most recent call last)"
_ERROR = re.compile(r"\b(?:\w*error|\w*exception|fatal|critical|panic|killed|failed|failure|aborted)\b", re.IGNORECASE)

# Rows that name a root cause, in the order of that registry's roles: causes first, then what only follows.
_ROOTS = re.compile(
    r"\bxid\b|ecc.*(?:uncorrectable|dbe)|gpu.*(?:off bus|fallen off)|nvlink.{0,24}(?:link down|uncorrectable|crc error)"
    r"|nvlink\s+fatal\s+(?:error|failure)|pcie.{0,24}(?:aer|link down|fatal error|uncorrectable)"
    r"|thermal.{0,80}(?:shutdown|violation|fault)|invalid access of peer gpu memory"
    r"|slurm.*(?:preempt|node failure|node_fail)"
    r"|\bpreempted\b|\bnode failure\b|due to time limit|\b(?:time limit|wall[- ]?time) (?:reached|exceeded|expired)"
    r"|\bscancel\b|\bcancelled by user\b|\buser .*cancel|\b[a-z_][\w.]*(?:error|exception):(?:\s|$)"
    r"|\bassertion(?:error)?\b.*\bfailed\b"
    r"|\binvalid (?:option|config(?:uration)?)\b|\bmissing (?:config(?:uration)?|key)\b|\binvalid argument\b"
    r"|no such file or directory|\bcheckpoint\b.{0,160}\bmismatch\b|\bshape mismatch\b|\bpermission denied\b|\beacces\b"
    r"|cuda out of memory|cublas_status_alloc_failed|(?:loss|grad(?:ient)?)[=:\s]+(?:nan|[-+]?inf)\b|non[- ]finite"
    r"|bad (?:token|sample)|segmentation fault|\bsegfault\b|illegal instruction|core dumped"
    r"|operation\s+timeout|\boperation\b.*\btimed out\b",
    re.IGNORECASE,
)
_FOLLOW = re.compile(
    r"detected\s+\d+\s+oom_kill|out of memory:\s+killed process|have been oom killed"
    r"|nccl.*(?:timeout|watchdog|abort|unhandled system error)|nccl warn cuda failure",
    re.IGNORECASE,
)
_ADVICE = re.compile(
    r"might be asynchronously reported|stacktrace (?:below )?might be incorrect"
    r"|cuda_launch_blocking|torch_use_cuda_dsa",
    re.IGNORECASE,
)


def last_traceback(lines: Sequence[str]) -> int:
    """The line that ends the last traceback: the first one after its header that is not indented."""
    starts = [number for number, line in enumerate(lines) if _HEADER in line]
    if not starts:
        return 0
    prefix_length = lines[starts[-1]].index(_HEADER)
    for number in range(starts[-1] + 1, len(lines)):
        rest = lines[number][prefix_length:]
        if rest.strip() and not rest.startswith((" ", "\t")):
            return number + 1
    return len(lines)


def first_error_line(lines: Sequence[str]) -> int:
    """The first line with a word of an error."""
    return next((number for number, line in enumerate(lines, 1) if _ERROR.search(line)), 0)


def resiliency_patterns(lines: Sequence[str]) -> int:
    """The first line that nvidia-resiliency-ext takes for a root cause, else the first of a consequence."""
    for pattern in (_ROOTS, _FOLLOW):
        for number, line in enumerate(lines, 1):
            if pattern.search(line) and not _ADVICE.search(line):
                return number
    return 0


BASELINES: dict[str, Baseline] = {
    "last_traceback": last_traceback,
    "first_error_line": first_error_line,
    "nvidia_resiliency_ext": resiliency_patterns,
}
