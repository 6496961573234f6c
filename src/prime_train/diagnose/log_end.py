"""Recognizes the end of a log's work, and the start of another attempt in the same log. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from prime_train.diagnose.hits import LogEnd
from prime_train.diagnose.log_prefix import strip_prefixes, unwrap
from prime_train.diagnose.prefilter import holds_any, is_error, normalize
from prime_train.diagnose.progress import PROGRESS_WORDS, measure_progress

_WORK = (
    r"(?:training|trainer|orchestrator|run|job|task|script|experiment|evaluation|eval|export|finetuning|"
    r"fine-tuning|sweep|program|process|work|attempt|everything|all (?:steps|epochs|tasks|jobs|done))"
)
_ENDED = r"(?:finished|completed?|done|succeeded|successful(?:ly)?|ended normally|exited normally)"
_NEGATED = re.compile(r"\b(?:not|never|un\w+|fail\w*|abort\w*|before|until|when|if|error\w*|once|without)\b")
_FAILED = re.compile(
    r"\b(?:died|unexpected\w*|fail\w*|errors?|abort\w*|crash\w*|kill\w*|"
    r"terminat\w*|bootstrapping)\b(?!: 0)(?<!0 errors)(?<!no errors)"
)
_GOOD = (
    re.compile(rf"^.{{0,120}}\b{_WORK}\b.{{0,60}}\b{_ENDED}\b(?! (?:to|with (?:errors?|exit code [1-9])))"),
    re.compile(rf"^.{{0,40}}\b(?:successfully|finished|completed) (?:the )?{_WORK}\b"),
    re.compile(r"\b(?:exit(?:ed)?|finished|return)(?: with)? ?(?:code|status)[ :=]{1,3}0\b"),
    re.compile(r"^\W{0,8}(?:finished|completed?|done|all done)\s?[:,.!(](?!\s*(?:mon|tue|wed|thu|fri|sat|sun|\d{4}-))"),
    re.compile(
        r"\btrainer\.fit` stopped:|\bearly stopping\b.{0,60}(?:best|stop)|\[(?:after training is done|"
        r"exiting program)\b"
    ),
    re.compile(
        r"\b(\d+) (?:of|/) ?\1 \w+ (?:passed|succeeded|done|completed)|\b(?:exit(?:ed|ing)?|"
        r"ended) (?:with )?(?:code )?0\b|nbconvertapp\] writing \d+ bytes"
    ),
    re.compile(r"['\"]train_runtime['\"]: "),
    re.compile(r"\bmax_steps reached\b|\breached (?:the )?max(?:imum)?[ _]steps\b"),
    re.compile(r"^\W{0,8}(?:all )?done[.!]?\W*$|^\W{0,8}(?:success|finished|complete)[.!]?\W*$"),
    re.compile(r"\bstate[ :=]{1,3}completed\b"),
)
# A process that failed writes these as well, so they count only in a log without a failure.
_WEAK = (
    re.compile(r"application shutdown complete|finished server process|shutdown complete|exited gracefully"),
    re.compile(r"\bsav(?:ed|ing) (?:the )?(?:final |last |trained )?(?:model|checkpoint|weights|adapter)"),
    re.compile(r"wandb: (?:synced|view run|run summary)|(?:model|checkpoint|weights) saved\b"),
)
_CALM = re.compile(
    r"^[^a-z]{0,80}(?:\S{1,80} )?[\[(|]?\s{0,4}(?:info|debug|success)\b|\|\s{0,4}(?:info|debug|success)\s{0,4}\|"
)
_GOOD_WORDS = (
    *("done", "finish", "complete", "succe", "ended", "exit", "status", "train_runtime", "reached", "stopped"),
    *("passed", "writing", "after training is", "saved", "saving", "wandb: "),
)
_holds_good = holds_any(_GOOD_WORDS)
_BANNERS = re.compile(
    r"""
      \b(?:attempt|try|retry|trial|restart)\b[ :=#]{0,3}\(?\d{1,4}\)?(?:\s?(?:/
        |of)\s?\d{1,4})?\b(?!\S*\ (?:failed|ended|exited|crashed|died|finished|of\ \d+\ failed))
    | \brestart_count[=:\ ]{1,2}[1-9] | \b(?:re-?start(?:ing|ed)|relaunch(?:ing|ed)|re-?queu(?:ing|ed)
      |re-?submitt(?:ing|ed))\b
      .{0,40}\b(?:run|job|training|trainer|attempt|worker\ group|process(?:es)?|script|from\ (?:checkpoint|step))
    | \b(?:start(?:ing|ed)|launch(?:ing|ed)|begin(?:ning)?)\b\ (?:new\ |the\ |a\ new\ )?(?:run|job|training\ run
      |attempt|trainer)\b
    | ^(?:script|container|job|run)\ started\b | ^[=#*\s-]{3,}(?!.{0,40}stack\ ?trace).{0,40}\b(?:start|launch|run|begin
      |attempt)\w*\b.{0,60}[=#*\s-]{3,}$
    """,
    re.VERBOSE,
)
_BANNER_WORDS = ("attempt", "try", "trial", "start", "launch", "queu", "submi", "begin", "run", "===", "###")
_holds_banner = holds_any(_BANNER_WORDS)
_CALM_WORDS = ("info", "debug", "success")
_holds_turn = holds_any((*PROGRESS_WORDS, *_BANNER_WORDS, *_CALM_WORDS))
_MOST = 400  # characters of a line that are searched
_SHORTEST_BANNER = 12
TAIL_LINES = 60  # the end of a log, in which a report of completed work is searched
_MOST_BYTES, _LONGEST_TEXT = 8192, 2000
START_LINES = 40  # in which the processes of one attempt write their first lines


def may_turn(lowered: str) -> bool:
    """Whether a line of the lower-case text may show progress, a good end, a calm level or a banner.

    One search in place of four. A flood of errors holds no such word.
    """
    return _holds_turn(lowered)


def is_calm(lowered: str) -> bool:
    """Whether a lower-case line is at info level or below."""
    return _CALM.match(lowered[:200]) is not None


def is_good_end(lowered: str, *, weak: bool = False) -> bool:
    """Whether a lower-case line reports that the work was completed. `weak`: signs that a failed process gives too."""
    if not _holds_good(lowered):
        return False
    head = lowered[:_MOST]
    if _FAILED.search(head):
        return False
    if any(found and not _NEGATED.search(found[0]) for found in (pattern.search(head) for pattern in _GOOD)):
        return True
    return weak and any(pattern.search(head) for pattern in _WEAK)


def read_end(tail: Sequence[bytes], count: int, *, has_failed: bool) -> LogEnd:
    """How a log of `count` lines ends; `tail` are its last lines. The kernel's log has no end, so it is always good."""
    filled = [(at, raw) for at, raw in enumerate(tail, count - len(tail) + 1) if raw.strip()]
    if not filled:
        return LogEnd(count, "", False)
    lines = [_text_of(raw) for _, raw in filled]
    is_kernel = not has_failed and all(_is_kernel(raw) for _, raw in filled)
    is_good = is_kernel or any(is_good_end(line.lower(), weak=not has_failed) for line in lines)
    return LogEnd(filled[-1][0], lines[-1].strip()[:_LONGEST_TEXT], is_good)


def _is_kernel(raw: bytes) -> bool:
    return strip_prefixes(raw[:400].decode("utf-8", "replace")).is_kernel


def _text_of(raw: bytes) -> str:
    last = raw[:_MOST_BYTES].rstrip().rsplit(b"\r", 1)[-1]  # of a progress bar
    return " ".join(line.text for line in unwrap(last.decode("utf-8", "replace")))


class Banners:
    """Recognizes the line with which an attempt starts: by its words, or because it repeats the first line of the log.

    A first line that several processes write at the start is no banner.
    """

    def __init__(self) -> None:
        self._first = ""
        self._is_shared = False
        self._is_over = False  # a line with a failure came

    def read_start(self, lowered: str) -> None:
        """Take in a line of the log's start. Its first long line becomes the one to recognize."""
        self._is_over = self._is_over or is_error(lowered)
        if self._is_over:
            return
        if not self._first:
            self._first = normalize(lowered[:_MOST]) if len(lowered.strip()) >= _SHORTEST_BANNER else ""
        elif normalize(lowered[:_MOST]) == self._first:
            self._is_shared = True

    @property
    def knows_first(self) -> bool:
        """Whether a line that repeats the first one starts another attempt."""
        return bool(self._first) and not self._is_shared

    def repeats_first(self, lowered: str) -> bool:
        """Whether a lower-case line repeats the first line of the log, apart from times and other numbers."""
        if not self.knows_first:
            return False
        head = lowered[:_MOST]
        # The ends are compared first, because the comparison of the whole takes a microsecond.
        if self._first[0] not in ("#", head[:1]) or self._first[-1] not in ("#", head[-1:]):
            return False
        return normalize(head) == self._first and not _is_of_traceback(head)

    def starts_attempt(self, lowered: str) -> bool:
        """Whether a lower-case line after a failure starts another attempt."""
        if self.repeats_first(lowered):
            return True
        head = lowered[:_MOST]
        return _holds_banner(head) and not _is_of_traceback(head) and _BANNERS.search(head) is not None


def _is_of_traceback(head: str) -> bool:
    return head[:1].isspace() or '", line ' in head
