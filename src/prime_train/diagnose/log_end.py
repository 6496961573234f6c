"""Recognizes the end of a log's work, and the start of another attempt in the same log. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from prime_train.diagnose.hits import LogEnd
from prime_train.diagnose.log_prefix import split_bars, strip_prefixes, unwrap
from prime_train.diagnose.prefilter import holds_any, is_error, normalize
from prime_train.diagnose.progress import PROGRESS_WORDS, is_clean_exit, measure_progress

_TRAINING = (
    r"(?:training|trainer|orchestrator|experiment|evaluation|eval|export|finetuning|fine-tuning|sweep|"
    r"all (?:steps|epochs))"
)
_SCRIPT = r"(?:run|job|task|attempt|script|program|process|work|everything|all (?:tasks|jobs|done))"
_ENDED = r"(?:finished|completed?|done|succeeded|successful(?:ly)?|ended normally|exited normally)"
_NEGATED = re.compile(r"\b(?:not|never|un\w+|fail\w*|abort\w*|before|until|when|if|error\w*|once|without)\b")
_FAILED = re.compile(
    r"\b(?:died|unexpected\w*|fail\w*|errors?|abort\w*|crash\w*|kill\w*|interrupt\w*|"
    r"terminat\w*|bootstrapping|timeout|nccl)\b(?!: 0)(?<!0 errors)(?<!no errors)"
)


def _reports_end(work: str) -> tuple[re.Pattern[str], ...]:
    return (
        re.compile(rf"^.{{0,120}}\b{work}\b.{{0,60}}\b{_ENDED}\b(?! (?:to|with (?:errors?|exit code [1-9])))"),
        re.compile(rf"^.{{0,40}}\b(?:successfully|finished|completed) (?:the )?{work}\b"),
    )


_GOOD = (
    *_reports_end(_TRAINING),
    re.compile(
        r"\btrainer\.fit` stopped:|\bearly stopping\b.{0,60}(?:best|stop)|\[(?:after training is done|"
        r"exiting program)\b"
    ),
    re.compile(r"\b(\d+) (?:of|/) ?\1 \w+ (?:passed|succeeded|done|completed)|nbconvertapp\] writing \d+ bytes"),
    re.compile(r"['\"]train_runtime['\"]: "),
    re.compile(r"\bmax_steps reached\b|\breached (?:the )?max(?:imum)?[ _]steps\b"),
    re.compile(
        r"\bstate[ :=]{1,3}completed\b|\bworkerstate\.succeeded\b|\b(?:state|status|phase)[ :=]{1,3}succeeded\b"
    ),
    re.compile(r"\b(?:training|fine-?tuning|run) took \d|\btotal (?:training|run|train) ?time\b.{0,20}\d"),
    # Chinese, Japanese, Korean, Spanish and Portuguese, French, German, Italian, Russian
    re.compile(
        r"训练(?:已)?(?:完成|结束)|訓練(?:完成|結束)|学習(?:が)?(?:完了|終了)|(?:학습|훈련)(?:이)? ?(?:완료|종료)"
        r"|\b(?:entrenamiento|treinamento|treino)\b.{0,30}\b(?:completad|finalizad|terminad|conclu[ií]d)[oa]\b"
        r"|\bentra[iî]nement\b.{0,30}\b(?:termin|achev)é|\btraining\b.{0,30}\b(?:abgeschlossen|beendet)\b"
        r"|\baddestramento\b.{0,30}\b(?:completat|terminat)o\b|\bобучение\b.{0,30}(?:завершен|законч|окончен)"  # noqa: RUF001
    ),
)
# What the script around a training writes as well when it was killed in the middle.
_BY_SCRIPT = (
    *_reports_end(_SCRIPT),
    re.compile(r"^\W{0,8}(?:finished|completed?|done|all done)\s?[:,.!(](?!\s*(?:mon|tue|wed|thu|fri|sat|sun|\d{4}-))"),
    re.compile(r"^\W{0,8}(?:all )?done[.!]?\W*$|^\W{0,8}(?:success|finished|complete)[.!]?\W*$"),
)
# A process that failed writes these as well, so they count only in a log without a failure.
_WEAK = (
    re.compile(r"application shutdown complete|finished server process|shutdown complete|exited gracefully"),
    re.compile(r"\bsav(?:ed|ing) (?:the )?(?:final |last |trained )?(?:model|checkpoint|weights|adapter)"),
    re.compile(r"wandb: (?:synced|view run|run summary)|(?:model|checkpoint|weights) saved\b"),
)
_CALM = re.compile(
    r"^(?:\([^()]{1,60}\) )?[^a-z]{0,80}(?:\S{1,80} )?(?:- )?[\[(|]?\s{0,4}(?:info|debug|success)\b"
    r"|\|\s{0,4}(?:info|debug|success)\s{0,4}\||^\d{4}-\d\d-\d\d[ t][\d:.,]{8,18}:? i "
)
_BANNERS = re.compile(
    r"""
      (?P<again>\b(?:attempt|try|retry|trial|restart)\b[ :=#]{0,3}\(?\d{1,4}\)?(?:\s?(?:/
        |of)\s?\d{1,4})?\b(?!\S*\ (?:failed|ended|exited|crashed|died|finished|of\ \d+\ failed)))
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
# What follows the work is no start of another: "=== running the epilogue ===", "restarting is not needed".
_AFTERWARDS = re.compile(
    r"\b(?:finish\w*|end(?:ed|ing|s)?|done|complete[ds]?|exit\w*|stopp\w*|epilog\w*|clean\w*|teardown|upload\w*|sync\w*"
    r"|summary|report|releas\w*|not|disabled|no more|copy\w*|archiv\w*|post)\b"
)
_REFUSAL = re.compile(r'"(?:post|get|put|delete) /[^"\n]{0,200}" 4\d\d\b')
_BANNER_WORDS = ("attempt", "try", "trial", "start", "launch", "queu", "submi", "begin", "run", "===", "###")
_holds_banner = holds_any(_BANNER_WORDS)
_CALM_WORDS = ("info", "debug", "success", " i ")
_holds_turn = holds_any((*PROGRESS_WORDS, *_BANNER_WORDS, *_CALM_WORDS, '" 4'))
# "iteration 14/ 900", or the count behind a bar that has no name or the name of a training.
_STEP_OF = re.compile(
    r"(?:\b(?:step|iteration|iter|global_step)\b[ :=\[(]{0,12}|^[ \t]{0,4}\d{1,3}%\|[^|]{0,200}\| "
    r"|\b(?:train\w*|step)\b.{0,40}\d{1,3}%\|[^|]{0,200}\| )(?P<step>\d{1,9})\s?/\s{0,8}(?P<steps>\d{1,9})(?!\d)"
)
_NEARLY_ALL = 0.9
_MOST = 400  # characters of a line that are searched
_SHORTEST_BANNER = 12
_WORD = re.compile(r"[a-z]{2,}")
_DATE_WORDS = re.compile(
    r"mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|utc|gmt|ces?t|e[sd]t|p[sd]t|am|pm"
)
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


def is_refusal(lowered: str) -> bool:
    """Whether a server answered a request with the fault of its client."""
    return _REFUSAL.search(lowered[:_MOST]) is not None


def is_good_end(lowered: str, *, weak: bool = False, by_script: bool = True) -> bool:
    """Whether a lower-case line reports that the work was completed.

    `weak`: also signs that a failed process gives too; `by_script`: also words of the script around it.
    """
    head = lowered[:_MOST]
    if _FAILED.search(head):
        return False
    if is_clean_exit(head):
        return True
    strong = (*_GOOD, *_BY_SCRIPT) if by_script else _GOOD
    if any(found and not _NEGATED.search(found[0]) for found in (pattern.search(head) for pattern in strong)):
        return True
    return weak and any(pattern.search(head) for pattern in _WEAK)


def read_end(tail: Sequence[bytes], count: int, *, has_failed: bool) -> LogEnd:
    """How a log of `count` lines ends; `tail` are its last lines. The kernel's log has no end, so it is always good."""
    filled = [(at, raw) for at, raw in enumerate(tail, count - len(tail) + 1) if raw.strip()]
    if not filled:
        return LogEnd(count, "", False)
    lines = [_text_of(raw) for _, raw in filled]
    is_kernel = not has_failed and all(_is_kernel(raw) for _, raw in filled)
    lowered = [line.lower() for line in lines]
    step, steps = _find_last_step(lowered)
    has_reached_end = step >= _NEARLY_ALL * steps
    is_good = is_kernel or bool(steps and step == steps)
    is_good = is_good or any(
        is_good_end(line, weak=not has_failed and has_reached_end, by_script=has_reached_end) for line in lowered
    )
    return LogEnd(filled[-1][0], lines[-1].strip()[:_LONGEST_TEXT], is_good)


def _find_last_step(lowered: Sequence[str]) -> tuple[int, int]:
    """The last step and the number of all, as in "step 14/900"; of several counts that of the most; else (0, 0)."""
    found = [item for line in lowered for item in _STEP_OF.finditer(line[:_MOST])]
    counted = [(int(item["step"]), int(item["steps"])) for item in found]
    return max(reversed(counted), key=lambda pair: pair[1], default=(0, 0))


def _is_kernel(raw: bytes) -> bool:
    return strip_prefixes(raw[:400].decode("utf-8", "replace")).is_kernel


def _text_of(raw: bytes) -> str:
    last = split_bars(raw[:_MOST_BYTES].rstrip().decode("utf-8", "replace"))[-1]
    return " ".join(line.text for line in unwrap(last))


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
        self._is_over = self._is_over or is_error(lowered) or (not self._first and _is_step(lowered))
        if self._is_over:
            return
        if not self._first:
            self._first = normalize(lowered[:_MOST]) if _tells_a_start(lowered) else ""
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
        if not _holds_banner(head) or _is_of_traceback(head):
            return False
        found = _BANNERS.search(head)
        return found is not None and (found["again"] is not None or not _AFTERWARDS.search(head))


def _tells_a_start(lowered: str) -> bool:
    """Whether a line may be the one with which only an attempt begins. A date and a rule come again."""
    head = lowered[:_MOST]
    words = [word for word in _WORD.findall(head) if not _DATE_WORDS.fullmatch(word)]
    return len(head.strip()) >= _SHORTEST_BANNER and len(words) > 1


def _is_step(lowered: str) -> bool:
    return "%|" in lowered[:_MOST] or measure_progress(lowered[:_MOST])[0] > 0


def _is_of_traceback(head: str) -> bool:
    return head[:1].isspace() or '", line ' in head
