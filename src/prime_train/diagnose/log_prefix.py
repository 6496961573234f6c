"""Removes the prefixes of a log line (colours, rank, process, time, level) and returns them as values. Pure."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from prime_train.diagnose import timestamps
from prime_train.diagnose.timestamps import Stamp

Level = Literal["", "debug", "info", "warning", "error"]

# Colours and cursor moves (CSI), window titles and links (OSC), and the short sequences.
ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)?|[@-Z\\-_])")
_LEVELS: dict[str, Level] = {
    **dict.fromkeys(("trace", "debug", "d"), "debug"),
    **dict.fromkeys(("info", "success", "notice", "i"), "info"),
    **dict.fromkeys(("warning", "warn", "w"), "warning"),
    **dict.fromkeys(("error", "critical", "fatal", "e", "f", "c", "exception"), "error"),
}
_NAMES = "TRACE|DEBUG|INFO|SUCCESS|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL"
_ZONES = "|".join(timestamps.ZONES_H)
_DATE = r"(?:\d{4}[-/]\d\d[-/]\d\d[T _]|\d{8}[T _-])"
_TIME = r"(?:\d\d:\d\d:\d\d|(?<=[T _-])\d{6})(?:[.,]\d{1,9})?"
_ISO = rf"{_DATE}{_TIME}(?:Z\b| ?[+-]\d\d:?\d\d\b| (?:{_ZONES})\b)?"
_DAYS, _MONTHS = "Mon|Tue|Wed|Thu|Fri|Sat|Sun", "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_MOST_PREFIXES = 8


# A progress bar has no newline, so the next message stands behind its last bracket.
_BAR = re.compile(r"\d{1,3}%\|[^|]{0,400}\|[^\[\]]{0,80}\[[^\[\]]{0,200}\]")


class LogLine(NamedTuple):
    """A line without its prefixes. `stream` names its writer ("rank3", "EngineCore pid=12"); empty where unknown."""

    text: str
    stream: str = ""
    level: Level = ""
    stamp: Stamp | None = None
    is_kernel: bool = False  # from the kernel's log


# Each pattern removes one prefix and the separator after it; the indentation of a traceback stays.
_PREFIXES = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"\[([A-Za-z_]+[ :]?\d+(?:\|\d+)?)\]: ?", "stream"),  # torchrun: [rank0]:, [default0]:, [trainer3|3]:
        (r"\(([^()\n]{1,80} pid=\d+[^()\n]{0,60})\) ?", "stream"),  # vLLM and Ray
        (r"( ?\d{1,4}): (?=\S| {2}File)", "stream"),  # srun --label
        (r"((?:\d{1,3}\.){3}\d{1,3}): (?=\S| {2}File)", "stream"),  # pdsh, by which DeepSpeed starts other machines
        (r"> (?=\S)", "drop"),  # a line that a letter or an issue quotes
        (r"([\w.-]{1,60}-\d+) +\| ?", "stream"),  # docker compose
        (r"\[([\w,:.-]{1,60})\]<(?:stdout|stderr|stddiag)>: ?", "stream"),  # mpirun --tag-output, horovodrun
        (r"\[(pod/[^\]\s]{1,120})\] ", "stream"),  # kubectl logs --prefix
        (r"(\S{1,80}:\d+:\d+) \[\d+\] (?:\S{1,80}:\d+ )?(?=NCCL )", "stream"),
        (r"\d{1,6}(?:\.\d{1,3})?s[\t ]\d{1,6}[\t ]", "drop"),  # Kaggle: seconds and number of the line
        (r"([DIWEF]) (\d\d)-(\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?) [\w./]{1,80}:\d+\] ", "vllm"),  # SkyPilot
        (rf"\[({_ISO}) ([DIWEFC]) \d+ \d+\] (?:\(\S{{1,60}}\) )?[\w./]{{1,80}}:\d+: ", "spdlog"),  # Ray
        (rf"({_ISO}): ([DIWEF]) \S{{1,160}}:\d+\] ", "spdlog"),  # XLA
        (r"\[\d{1,7}\] (?=\[(?:" + _NAMES + r")\])", "drop"),  # gunicorn
        (r"\[[A-Za-z][\w.-]{0,29}\] (?=\d{4}-\d\d-\d\d|\[\d{4}-)", "drop"),  # a name before a time
        (r"(?:stdout|stderr) [FP] ", "place"),  # Kubernetes' container runtime, after its time
        (rf"<\d{{1,3}}>1 ({_ISO}) \S+ \S+ \S+ \S+ (?:-|\[[^\]\n]{{0,400}}\]) ?(?:\ufeff)?", "iso"),  # RFC 5424
        (
            rf"\[?(?:{_DAYS}),? ((?:{_MONTHS}) {{1,2}}\d{{1,2}} \d\d:\d\d:\d\d (?:(?:{_ZONES}) )?\d{{4}})\]?:? ?",
            "ctime",
        ),
        (
            r"(?:[\da-fA-F.:]{3,45} \S{1,60} \S{1,60} )?"
            rf"\[(\d\d/(?:{_MONTHS})/\d{{4}}:\d\d:\d\d:\d\d(?: [+-]\d{{4}})?)\] ?",
            "apache",
        ),
        (r"\[?(1[6-9]\d{8}(?:\.\d{1,9}|\d{3})?)\]?(?::| [-|:])? ", "epoch"),
        (rf"({_NAMES}) (\d\d)-(\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?) \[[^\]\n]*\] ?", "vllm"),
        (r"\[?([IWEFC])(\d{1,2})(\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?) +(?:\d+ )?[^\s\]]+\] ?", "glog"),
        (rf"[\[(]?({_ISO})[\])]?(?::?(?: [-|] | \| ?| |$)|:(?=[A-Z]))", "iso"),
        (r"([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d:\d\d:\d\d(?:\.\d+)?) [\w.-]+ ([\w./()-]+)(?:\[\d+\])?: ?", "syslog"),
        (r"(?:<\d+>)?\[ *(\d{1,10}\.\d{6})\](?:\[[^\]\n]{1,12}\])? ?", "boot"),
        (r"\[?(\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)\]?(?: [-|] | \| ?| |$) *", "clock"),
        (r" ?([DIWEF]) (?:tensorflow|external|xla)/\S{1,160}:\d+\] ", "level"),  # a TensorFlow without times
        (r"\[([IWEF]) \w+\.cpp:\d+\] ?", "level"),  # torch before 2.3
        (rf"\[({_NAMES})\](?: [-|])? ?", "level"),
        (rf"({_NAMES}):? *(?:[-|] |$|(?<=[ :|])(?=\S))", "level"),
        (r"([\w.<>-]+:[\w.<>-]+:\d+) +?- ", "place"),  # loguru: module:function:line
        (r"\[[\w./-]+\.py:\d+(?::\w+)?\] ", "place"),
        (r"[\w.]+ +- (?=\S)", "place"),  # logging: a logger's name
    )
)
_WANDB = re.compile(r"wandb: (ERROR|WARNING|WARN)\b")
_GROUP = re.compile(r"^\s*(?:\| ?(?!\s*$)|\+ (?=Exception Group))")
_GROUP_RULE = re.compile(r"\s*\+-[-+]")


def split_bars(text: str) -> list[str]:
    """The parts of a line that a carriage return or a progress bar without a newline has joined."""
    parts: list[str] = []
    for part in text.split("\r"):
        bars = list(_BAR.finditer(part)) if "%|" in part else []
        end = bars[-1].end() if bars else 0
        parts += [part[:end], part[end:].lstrip()] if end and part[end:].strip() else [part]
    return parts


def strip_prefixes(raw: str) -> LogLine:
    """The message of one line (without newline), and the values of its prefixes. `raw` must have no colours."""
    line = LogLine(raw.rstrip())
    for _ in range(_MOST_PREFIXES):
        shorter = _strip_one(line)
        if shorter is None:
            break
        line = shorter
    if line.text.startswith((" ", "|", "+")):  # the tree that Python draws before the lines of an exception group
        line = line._replace(text="" if _GROUP_RULE.match(line.text) else _GROUP.sub("", line.text, count=1))
    wandb = _WANDB.match(line.text)
    return line._replace(level=_LEVELS[wandb[1].lower()]) if wandb else line


def _strip_one(line: LogLine) -> LogLine | None:
    for pattern, kind in _PREFIXES:
        found = pattern.match(line.text)
        if found is None or (kind == "place" and line.stamp is None and not line.level):
            continue
        return _apply_prefix(line, found, kind)
    return None


def _apply_prefix(line: LogLine, found: re.Match[str], kind: str) -> LogLine:
    line = line._replace(text=line.text[found.end() :])
    match kind:
        case "stream":
            return line._replace(stream=f"{line.stream} {found[1].strip()}".strip())
        case "level":
            return line._replace(level=_LEVELS[found[1].lower()])
        case "vllm" | "glog":
            stamp = timestamps.parse_month_and_day(int(found[2]), int(found[3]), found[4])
            return line._replace(level=_LEVELS[found[1].lower()], stamp=stamp or line.stamp)
        case "syslog":
            stamp = timestamps.parse_month_and_day(found[1], int(found[2]), found[3])
            return line._replace(stamp=stamp or line.stamp, is_kernel=found[4] == "kernel")
        case "ctime" | "apache":
            return line._replace(stamp=timestamps.parse_words(found[1]) or line.stamp)
        case "epoch":
            return line._replace(stamp=timestamps.parse_epoch(found[1]))
        case "spdlog":
            level = _LEVELS[found[2].lower()]
            return line._replace(level=level, stamp=timestamps.parse_iso(found[1]) or line.stamp)
        case "iso":
            return line._replace(stamp=timestamps.parse_iso(found[1]) or line.stamp)
        case "clock":
            return line._replace(stamp=line.stamp or timestamps.parse_clock(found[1]))
        case "boot":
            return line._replace(stamp=line.stamp or Stamp("boot", float(found[1])), is_kernel=True)
    return line


# --- prefixes that no pattern knows ---------------------------------------------------------------------

_HEADER = "Traceback (most recent call last)"
_CHANGING_TOKEN = re.compile(r"\W{0,2}(?:\d+[.:,]\d[\d.:,TZ+-]*s?|\d{4}-\d\d-\d\d\S*|\d{5,}|\d+(?:\.\d+)?m?s)\W{0,2}")
_LEVEL_WORD = re.compile(rf"\b(?:{_NAMES})\b")
_LONGEST_PREFIX, _MOST_LEARNED = 160, 12


class LearnedPrefixes:
    """The prefixes of one log, learned from what stands before the header of a traceback.

    A word that is a time or a measured number may differ from line to line; all others are the same on every line of
    the same writer.
    """

    def __init__(self) -> None:
        self._known: dict[str, re.Pattern[str]] = {}  # name of the writer -> its prefix

    def learn(self, raw: str) -> str:
        """Learn the prefix of the line with a header. Returns the name of its writer; empty if it is no prefix."""
        prefix = raw[: raw.find(_HEADER)]
        if not prefix.strip() or len(prefix) > _LONGEST_PREFIX or _LEVEL_WORD.search(prefix):
            return ""
        words = re.split(r"(\s+)", prefix)
        fixed: list[str] = []
        patterns: list[str] = []
        for word in words:
            changes = bool(_CHANGING_TOKEN.fullmatch(word)) or (word.isdigit() and not fixed)
            patterns.append(r"\s+" if word.isspace() else r"\S+" if changes else re.escape(word))
            if not changes and not word.isspace() and word:
                fixed.append(word)
        if patterns[-1] == "" and len(patterns) > 1:
            patterns[-2:] = [re.escape(words[-2])]  # the space before the message; more of it is indentation
        name = " ".join(fixed) or "learned"
        if len(self._known) < _MOST_LEARNED or name in self._known:
            self._known[name] = re.compile("".join(patterns))
        return name

    def remove(self, raw: str) -> tuple[str, str]:
        """The writer and the line without its learned prefix; empty and the line itself where none is there."""
        for name, pattern in self._known.items():
            found = pattern.match(raw)
            if found is not None:
                return name, raw[found.end() :]
        return "", raw


# --- lines that are JSON ------------------------------------------------------------------------------

_MESSAGE_KEYS = ("message", "msg", "log", "text", "event", "body", "MESSAGE", "textPayload")
_TRACE_KEYS = ("exc_info", "exception", "exc_text", "traceback", "stack_trace", "stack", "error")
_LEVEL_KEYS = ("level", "levelname", "severity", "lvl", "log_level")
_TIME_KEYS = ("timestamp", "time", "ts", "asctime", "@timestamp", "created", "datetime")


def unwrap(raw: str) -> list[LogLine]:
    """The line itself, or for a JSON object the lines of its message and its traceback."""
    fields: dict[str, Any] = {}
    if raw.startswith("{"):
        with suppress(ValueError, RecursionError):
            fields = json.loads(raw)
    for key in ("record", "jsonPayload"):  # of loguru, and of Google Cloud
        nested = fields.get(key)
        fields = {**nested, **fields} if isinstance(nested, dict) else fields
    texts = [value for key in (*_MESSAGE_KEYS, *_TRACE_KEYS) if isinstance(value := fields.get(key), str) and value]
    if not texts:
        return [_read_logfmt(raw) or strip_prefixes(raw)]
    level, stamp = _level(fields), _stamp(fields)
    inner = [strip_prefixes(part) for text in dict.fromkeys(texts) for part in text.splitlines()]
    return [line._replace(level=line.level or level, stamp=line.stamp or stamp) for line in inner]


_LOGFMT = re.compile(
    r'(?:(?:time|ts)="?([^"\s]{10,40})"?\s)?(?:\S{1,80} ){0,2}level="?(\w{1,8})"?\s'
    r'(?:\S{1,80} ){0,3}msg=(?:"((?:[^"\\]|\\.)*)"|(\S+))'
)


def _read_logfmt(raw: str) -> LogLine | None:
    """The line of a program that writes level=error msg="..."; None for other lines."""
    found = _LOGFMT.match(raw) if "level=" in raw[:200] else None
    if found is None or found[2].lower() not in _LEVELS:
        return None
    line = strip_prefixes(found[3] if found[3] is not None else found[4])
    return line._replace(
        level=_LEVELS[found[2].lower()], stamp=timestamps.parse_iso(found[1]) if found[1] else line.stamp
    )


def _level(fields: dict[str, Any]) -> Level:
    for key in _LEVEL_KEYS:
        value = fields.get(key)
        name = value.get("name") if isinstance(value, dict) else value  # loguru has an object
        if isinstance(name, str) and name.lower() in _LEVELS:
            return _LEVELS[name.lower()]
    return ""


def _stamp(fields: dict[str, Any]) -> Stamp | None:
    for key in _TIME_KEYS:
        value = fields.get(key)
        if isinstance(value, dict):
            value = value.get("timestamp")
        if isinstance(value, str):
            stamp = timestamps.parse_iso(re.sub(r"(\.\d{6})\d+", r"\1", value))
            if stamp is not None:
                return stamp
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and 1e9 < value < 1e14:
            return Stamp("wall", value / 1000 if value > 1e11 else float(value))
    return None
