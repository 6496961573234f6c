"""Makes the documents that the page and `top` show from what is known of the runs.

`make_row` is the line of a run, `map_devices` the machines with their GPUs, `make_detail` everything of one run. The
numbers come from the document of `status`. Only settings, checkpoints and traces are read from folders. Ages are
given as times, because an age would change at each look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prime_train.control.editor import read_editor, read_history
from prime_train.control.followed import FollowedRun, RankSeen
from prime_train.control.members import MEMBERS_SHOWN, find_member, list_members, name_member
from prime_train.control.timeline import find_failures, find_marks, shorten
from prime_train.core.errors import UserError
from prime_train.core.machines import count_machines
from prime_train.estimate.values import Interval
from prime_train.supervise.agent.traces import TraceFile, list_traces
from prime_train.supervise.core.gpu_stages import find_stage
from prime_train.supervise.core.state import ActiveAlarm, State
from prime_train.supervise.watches.cost.spent import usd_so_far
from prime_train.views.run import checkpoints
from prime_train.views.run.status import Status
from prime_train.views.run.status_document import status_document
from prime_train.views.text import rounded

Document = dict[str, Any]
_OF_STATUS = (
    *("state", "resumable", "exit_code", "reason", "step", "max_steps", "is_endless", "loss", "validation_loss"),
    *(
        "reward",
        "tokens_per_s",
        "unit",
        "phase",
        "last_event",
        "attempt",
        "restarts",
        "left_s",
        "not_finite",
        "proposal",
    ),
)
_ALARMS_SHOWN = 20
_ENTRIES_SHOWN = 300
_TRACES_SHOWN = 64


def make_row(run: FollowedRun, now_s: float) -> Document:
    """The line of a run. A run that cannot be read has the state "unreadable" and the reason."""
    state = run.state
    status = _create_status(run, now_s)
    found = status_document(status)
    row = {name: shorten(found[name]) for name in _OF_STATUS}
    row |= {
        "cause": found["cause"] and {name: shorten(found["cause"][name]) for name in ("what", "attempt", "step", "id")},
        "alarms": [_alarm(active) for active in state.alarms[:_ALARMS_SHOWN]],
        "host": run.holder.host if run.holder else None,
        "supervised": run.is_supervised,
        "began_s": state.first_opened_s,
        "last_sign_s": _last_sign_s(state),
        "world_size": run.world_size,
        "device": shorten(state.started.device) if state.started else None,
        "newest_complete": status.newest_complete,
        "saving": state.saving_step,
        # A pause or a drain ends an attempt only, so the run may be asked to stop meanwhile.
        "stopping": state.stop_requested_s is not None and state.halt is None,
        "usd": _usd(run, now_s),
        "wandb": run.link,
        "damage": run.damage or None,
        "left_out": [
            {name: shorten(gpu[name]) for name in ("uuid", "test")} for gpu in found["gpus"] if gpu["left_out"]
        ],
    }
    if run.unreadable:
        row |= {"state": "unreadable", "reason": shorten(run.unreadable)}
    return row


def _create_status(run: FollowedRun, now_s: float) -> Status:
    newest = run.state.newest_complete or None
    return Status(run.run_dir.path, run.state, run.is_supervised, (), newest_complete=newest, now_s=now_s)


def _last_sign_s(state: State) -> float | None:
    last_s = state.live.last_sign_s if state.live else state.progress_s
    return state.last_event_s if last_s is None else last_s


def _usd(run: FollowedRun, now_s: float) -> Document | None:
    return round_usd(usd_so_far(run.state, run.used_gpus, now_s if run.is_supervised else None))


def round_usd(found: Interval | None) -> Document | None:
    return None if found is None else {name: round(getattr(found, name), 2) for name in ("low", "typical", "high")}


def _alarm(active: ActiveAlarm) -> Document:
    alarm = active.alarm
    names = ("watch", "name", "subject", "answer", "what", "why", "fix", "where")
    return {name: shorten(getattr(alarm, name)) for name in names} | {"since_s": round(active.since_s, 3)}


# --- machines and GPUs ------------------------------------------------------------------------------


def map_devices(runs: Iterable[FollowedRun]) -> dict[str, Document]:
    """Each machine with its devices: the GPUs that a watch samples, else one for each rank of a run without GPUs.

    `work`: the runs, and their ranks, whose processes the driver lists on the GPU. A run whose processes the driver
    lists under other numbers, as in some containers, has no rank there. `left_out`: the runs that go on without it.
    A run on several machines has each of them under a name of its own, with a cell for each rank and `members`.
    """
    machines: dict[str, Document] = {}
    for run in runs:
        if run.holder is None:
            continue
        here, count = shorten(str(run.gpus.get("host", run.holder.host))), count_machines(run.config)
        for number, member in enumerate(_list_members(run, count)):
            place = _add_machine(machines, name_member(run.name, number) if number else here)
            place["members"] = [*place.get("members", ()), member]
        if run.state.live is None:
            continue
        own = _add_machine(machines, here)["devices"]
        by_machine = [(find_member(rank.rank, run.world_size, count), rank) for rank in run.ranks.values()]
        _add_gpus(own, run, {rank.pid: rank for number, rank in by_machine if number == 0})
        for number, rank in by_machine:
            if number < MEMBERS_SHOWN and (number or not run.gpus):
                devices = _add_machine(machines, name_member(run.name, number))["devices"] if number else own
                cell = _create_cell({"index": rank.rank, "kind": rank.device}) | {"work": [_work(run, rank)]}
                devices[f"{run.name}/{rank.rank}"] = cell
    return machines


def _add_machine(machines: dict[str, Document], name: str) -> Document:
    return machines.setdefault(name, {"devices": {}})


def _list_members(run: FollowedRun, count: int) -> list[Document]:
    state = run.state
    if state.closed:
        return []
    tests = {test.gpu: {"passed": test.passed, "what": test.what} for test in state.gpu_tests}
    left_out = {name: tests.get(name) for name in state.drained_machines}
    is_stopping = state.stop_requested_s is not None and state.halt is None
    return list_members(run.name, count, left_out, is_paused=state.is_paused, is_stopping=is_stopping)


def _add_gpus(devices: Document, run: FollowedRun, pids: Mapping[int, RankSeen]) -> None:
    """The GPUs of machine 0. `pids`: the ranks there, because another machine may have the same numbers."""
    for gpu in run.gpus.get("gpus", ()):
        cell = devices.setdefault(gpu["uuid"] or f"GPU {gpu['index']}", _create_cell(gpu))
        ranks = [pids[pid] for pid in gpu["pids"] or () if pid in pids]
        cell["work"] += [_work(run, rank) for rank in ranks]
        if (stage := find_stage(run.state, gpu["uuid"])) != "ok":
            cell["stage"] = stage
        cell["xids"] = sorted({*cell["xids"], *_xids(run.state, gpu["uuid"])})
        if gpu["uuid"] in run.state.left_out:
            cell["left_out"] = [*cell["left_out"], run.name]


def _create_cell(sample: Mapping[str, Any]) -> Document:
    return {
        "index": sample["index"],
        "kind": shorten(sample.get("kind", "GPU")),
        **{name: value for name, value in sample.items() if name not in ("pids", "index", "kind")},
        "work": [],
        "xids": [],
        "left_out": [],
    }


def _work(run: FollowedRun, rank: RankSeen) -> Document:
    place = {"run": run.name, "rank": rank.rank, "step": _rank_step(run, rank), "lag": _lag(run, rank)}
    slow = _find_slow(run.state, rank.rank)
    return place | ({"slow": shorten(slow)} if slow else {})


def _find_slow(state: State, rank: int) -> str | None:
    """Why the other ranks wait for this one, as an alarm that stands says it; None for a rank that is not slow."""
    alarms = (active.alarm for active in state.alarms if active.alarm.watch == "straggler")
    return next((alarm.what for alarm in alarms if alarm.subject == f"rank {rank}"), None)


def _rank_step(run: FollowedRun, rank: RankSeen) -> int | None:
    """Rank 0 reports the step for all ranks, which make each step together."""
    return run.state.step if rank.step is None else rank.step


def _lag(run: FollowedRun, rank: RankSeen) -> int | None:
    """Steps behind the rank that is furthest; None for a rank that reports no steps itself."""
    furthest = max((one.step for one in run.ranks.values() if one.step is not None), default=None)
    return None if rank.step is None or furthest is None else furthest - rank.step


def _xids(state: State, uuid: str) -> set[str]:
    """The XIDs that an alarm names and that stand."""
    prefix = "gpu_xid_"
    return {
        active.alarm.name.removeprefix(prefix)[:8]
        for active in state.alarms
        if active.alarm.where == uuid and uuid and active.alarm.name.startswith(prefix)
    }


# --- one run ----------------------------------------------------------------------------------------


def make_detail(run: FollowedRun, now_s: float) -> Document:
    """Everything of one run. Reads its folders of checkpoints, of settings and of traces."""
    entries = list(run.entries)
    return {
        "name": run.name,
        "path": str(run.run_dir.path),
        "row": make_row(run, now_s),
        "replicas": _list_replicas(run),
        "curves": run.curves.document(),
        "marks": find_marks(entries),
        "failures": find_failures(entries),
        "entries": entries[-_ENTRIES_SHOWN:],
        "settings": read_history(run.run_dir),
        "editor": read_editor(run.run_dir),
        "checkpoints": _list_checkpoints(run, now_s),
        "traces": [_make_trace(one) for one in list_traces(run.run_dir)[-_TRACES_SHOWN:]],
    }


def _list_replicas(run: FollowedRun) -> list[Document]:
    """The ranks of the newest attempt. Times per step are those that rank 0 measures."""
    settings = next((entry for entry in reversed(run.entries) if entry["kind"] == "settings_applied"), None)
    version = settings["details"].get("version") if settings else None
    times = {name: rounded(value, 6) for name, value in run.curves.last.items()}
    return [
        {
            "rank": rank.rank,
            "pid": rank.pid,
            "device": shorten(rank.device),
            "step": _rank_step(run, rank),
            "lag": _lag(run, rank),
            "loss": rounded(run.state.loss, 6) if rank.rank == 0 else None,
            "times": times if rank.rank == 0 else {},
            "last_sign_s": rank.sign_s,
            "settings": version,
            "checkpoint": run.state.newest_complete or None,
        }
        for rank in sorted(run.ranks.values(), key=lambda one: one.rank)
    ]


def _list_checkpoints(run: FollowedRun, now_s: float) -> Document:
    try:
        found = checkpoints.saved(run.run_dir)
        document = checkpoints.list_json(run.name, found, run.state.unreadable, now_s)
    except (UserError, OSError) as error:
        why = error.why if isinstance(error, UserError) else error.strerror or str(error)
        return {"checkpoints": [], "resume_step": None, "problem": shorten(why)}
    return {"checkpoints": shorten(document["checkpoints"]), "resume_step": document["resume_step"], "problem": None}


def _make_trace(trace: TraceFile) -> Document:
    about = {"name": trace.name, "size_bytes": trace.size_bytes, "saved_s": trace.modified_ns / 1e9}
    return about | {"note": trace.note, "ready": not trace.note}
