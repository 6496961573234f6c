"""Classifies who speaks in a log line: an exception, a logger, the kernel, a launcher, or only text. Pure.

A signature counts only in the lines of the speakers that it accepts. Text of a model, a dump of settings and an echoed
command may hold every word of a failure without one.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

from prime_train.diagnose.log_prefix import LogLine
from prime_train.diagnose.tracebacks import Builder, exception_alone

Speaker = Literal["exception", "error", "kernel", "launcher", "warning", "plain", "info", "dump", "command"]
ALL_SPEAKERS: tuple[Speaker, ...] = get_args(Speaker)
DEFAULT_SPEAKERS: tuple[Speaker, ...] = ("exception", "error", "kernel", "launcher", "warning")

_KERNEL = re.compile(
    r"(?:\[ *\d{1,10}\.\d{1,9}\] ?)?"  # seconds since the boot, which a collector may have rounded
    r"(?:NVRM: |mce: |EDAC |nvidia-nvswitch\d|nvidia-modeset: |oom-kill:|Out of memory: Kill|"
    r"Memory cgroup out of memory|"
    r"INFO: task \S+:\d+ blocked|INFO: rcu_sched|watchdog: BUG|blk_update_request|Buffer I/O error|EXT4-fs|XFS \(|"
    r"nvme\S*: |pcieport |\{\d+\}\[Hardware Error\]|[\w.-]{1,40}\[\d+\]: segfault at|traps: )"
)
# Programs that report the end of another program, or their own, without a logger.
_LAUNCHER = re.compile(
    r"""
      (?:srun|sbatch|salloc|slurmstepd|slurmd|mpirun|mpiexec|orterun|prterun|kubelet|dockerd?|podman|OCI\ runtime|git
        |ninja|nvcc|gcc|g\+\+|ld|cc1plus|uv|pip|conda|tar|unzip|rsync|scp|curl|wget|aws|gsutil|libgomp|libnuma
        |nvidia-container-cli|NVIDIA-SMI|CMake\ Error|runpy|accelerate|deepspeed|wandb|ray|env|Failed\ core\ proc
        |hf|huggingface-cli)(?:[:\s]|\b\ ?[\[(]).{0,200}?\b(?:error|fail|fatal|not\ found|denied|cannot
          |could\ not|abort|kill
        |terminated|warn|unable|no\ space|quota|timed\ out|timeout|exited|cancelled|refused|oom)
    | (?:/\S{1,100}/)?(?:ba|z|da|tc)?sh:\ (?:line\ \d+:|\d+:|\S{1,80}:)
    | \S{1,80}:\ line\ \d+:\ +\d+\ (?:Killed|Segmentation|Bus|Aborted|Terminated|Illegal|Hangup|Floating)
    | (?:Killed|Terminated|Hangup|Aborted|Segmentation\ fault|Bus\ error|Illegal\ instruction|Floating\ point\ exception
        |Trace/breakpoint\ trap)(?:\s*$|\ \(core\ dumped\)|:\ \d+)
    | \S{0,80}:\ \d+\ (?:Killed|Terminated|Hangup)\b
    | (?:terminate\ called|\s*what\(\):|Fatal\ Python\ error:|double\ free|malloc\(\):|free\(\):|corrupted\ size
        |munmap_chunk|\*\*\*\ \S{0,40}\ ?(?:stack|Process|SIG|Aborted|End\ of|JOB|STEP|longjmp)
        |thread\ '.{1,80}'\ .{0,20}panicked|panicked\ at|pthread_create\ failed|OpenBLAS\ blas_thread_init)
    | \s*(?:exitcode|traceback|error_file)\s*:\s | \s*Root\ Cause\ \(first | .{0,60}\bnon-zero\ exit\ status
    | .{0,80}\b(?:return\ ?code|returncode|exit\ ?code|exit\ status|exitcode|status|signal)\b[ :=]{1,3}\(?-?\d{1,3}\b
    | (?!(?:user|assistant|system|human|model|answer|prompt|completion|response|output|note|reward|sample)\b)
      [a-z][\w.+-]{0,30}(?:\[\d+\])?:\ .{0,200}?(?:No\ space\ left\ on\ device|Permission\ denied|No\ such\ file
      |Cannot\ allocate\ memory|Connection\ (?:refused|timed\ out|reset)|Input/output\ error|Read-only\ file\ system
      |Disk\ quota\ exceeded|Too\ many\ open\ files|Resource\ temporarily\ unavailable|Exec\ format\ error)
    | \S{1,80}:\ \S{1,200}\.(?:c|cc|cpp|cu|h|hpp):\d+:\ .{0,200}\bAssertion\b
    | \S{1,200}\.(?:cu|cuh|hip):\d+:\ .{0,300}\bthread:\ ?\[[\d,\ ]{5,30}\]\ ?Assertion\b
    | .{0,60}\bexited\ with\ (?:code|status|signal)\ -?[1-9]
    | Command\ '.{1,2000}'\ (?:died|returned) | .{0,80}\bSignals\.SIG | \S{1,60}\ FAILED$ | \[?(?:ERROR|FATAL|FAILED)\b
    | (?:/usr/bin/env|exec|permission\ denied|Failed\ to\ spawn|error\ while\ loading\ shared\ libraries):?
      | \S{1,100}:\ error\ while\ loading
    | (?:An\ attempt\ has\ been\ made\ to\ start\ a\ new\ process)
    | (?:\S{1,80}:\ line\ \d+:\ )?\S{1,100}:\ (?:command\ )?not\ found$ | \S{1,80}:\ (?:fatal|undefined\ symbol
      |symbol\ lookup\ error)
    | (?:(?:\d{1,4}[smhd]){1,2}\s+)?(?:Warning|Normal)\s+(?:Failed|BackOff|Evicted|Unhealthy|OOM|NodeNot|Killing)\w*\s
    | .{0,40}\b(?:OOMKilled|CrashLoopBackOff|ImagePullBackOff|ErrImagePull|Evicted|NODE_FAIL|FAILED_\w+)\b
    | .{0,40}\bDUE\ TO\ | git@\S+:\ | Error\ response\ from\ daemon | The\ node\ was\ low\ on\ resource
    | NCCL\ WARN\ | \[Rank\ \d+\]\ | FATAL\ ERROR | Unable\ to\ determine\ the\ device\ handle
      | Failed\ to\ initialize\ NVML | No\ devices\ were\ found
    | .{0,60}\bCaught\ signal\ \d+\ \( | (?:mpirun|mpiexec|prterun|orterun)\S*\ (?:noticed|detected)
    | A\ worker\ died | \(?raylet\)? | .{0,60}\b[Rr]eceived\ (?:SIG|signal\ \d|Ctrl) | CUDA\ Error:
    """,
    re.VERBOSE,
)
# "error:" after the name of a program, as compilers and argparse write it.
_ERROR = re.compile(
    r"(?:thread '.{1,80}' (?:\(\d+\) )?panicked at |fatal: |Check failed: |"
    r"\S{1,300}(?::\d{1,7}(?::\d{1,5})?|\(\d{1,7}(?:,\d{1,5})?\)): (?:fatal |catastrophic )?error\b|"
    r"Exception in thread \"\S{1,80}\" )|"
    r"(?:[\w./+@-]{1,80}(?:\[\d+\])?: |\[[^\]]{1,60}\] |[A-Z]\w{0,30} ){0,2}"
    r"(?:(?:fatal|critical|internal|runtime|unexpected|rpc|server)[ _])?(?:ERROR|Error|error|FATAL|fatal|"
    r"CRITICAL|PANIC|panic|E)"
    r"(?:\[\w{1,20}\]|\(\w{1,20}\))?(?::| -|!|\s{2,}|$)"
)
_WARNING = re.compile(r"(?:\S{1,200}:\d+: )?(?:\w{0,40}Warning|warning|WARN(?:ING)?)\b[:\s]")
_COMMAND = re.compile(
    r"(?:\++ |[$%#>] |(?:[\w.@-]{1,60}[:~]\S{0,60})?[$#] |>>> |In \[\d*\]: |\[?(?:cmd|command|args|argv|"
    r"entrypoint|shell|exec)\]?\s?[:=]|"
    r"(?:Running|Executing|Launching|Starting|Run|Invoking)(?: (?:the )?(?:command|cmd|script|"
    r"with))?:? .{0,20}(?:python|bash|sh |torchrun|srun|"
    r"uv |vllm|ssh|accelerate|docker|/)|"
    r"(?:python3?|torchrun|accelerate|srun|sbatch|mpirun|docker|kubectl|uv|ssh|scp|rsync|export|set|echo|cat|grep|nohup|vllm|deepspeed|"
    r"CUDA_VISIBLE_DEVICES=\S{0,60}|[A-Z][A-Z_0-9]{3,40}=\S{0,80}) [^:]{0,60}(?:--?\w|\.py\b|\.sh\b|/))"
)
_DUMP = re.compile(
    r"\s*(?:[\[{(]\s*['\"\w]|[A-Z]\w{2,60}\((?:\w{1,60}=|$)|\w{1,60}\(\w{1,60}=|"
    r"[-*]?\s*['\"]?[a-z][\w.\[\]/-]{0,80}['\"]?\s{0,40}(?:=>?|:)\s{0,40}(?:['\"\[{]?[\w./-]{0,200}['\"\]}]?,?$|['\"\[{(]|-?[\d.]+\b|True|False|None|null))"
)
_PAIRS = re.compile(r"\b\w{1,60}=[^\s=]")
_CODE = re.compile(
    r"\s*(?:raise \w|assert |return |import |from \w[\w.]* import |def |class |except\b|if |with |self\.|#)"
)
_QUOTED = re.compile(r"\s*(?:>+ |\| |[\"'`])")


def classify(line: LogLine, traceback: Builder | None = None) -> Speaker:
    """The speaker of a line. A traceback that was logged below error level was caught, and speaks at its level."""
    if traceback is not None:
        return "warning" if traceback.is_calm else "exception"
    text = line.text
    if line.is_kernel or _KERNEL.match(text):
        return "kernel"
    if line.level:
        return "info" if line.level == "debug" else line.level
    if _COMMAND.match(text):
        return "command"
    if exception_alone(text):
        return "exception"
    if _CODE.match(text):
        return "dump"
    if _ERROR.match(text):
        return "error"
    if _WARNING.match(text):
        return "warning"
    if _LAUNCHER.match(text):
        return "launcher"
    if _DUMP.match(text) or len(_PAIRS.findall(text, 0, 2000)) >= 3:
        return "dump"
    return "dump" if _QUOTED.match(text) else "plain"
