"""Makes what the page shows from what agents report about runs on other machines: row, devices, details. Pure.

They have the shape of those in `state.py`, and costs and proposals come from the same functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prime_train.bus.base import to_word
from prime_train.bus.fleet import Liveness
from prime_train.bus.fleet_events import COLUMNS, FIGURES
from prime_train.bus.fleet_traces import count_parts, is_whole
from prime_train.control.members import MEMBERS_SHOWN, find_member, list_members, name_member
from prime_train.control.state import round_usd
from prime_train.control.timeline import shorten
from prime_train.core.machines import find_machine
from prime_train.events import InstabilityFound
from prime_train.spec import ENDLESS_STEPS
from prime_train.supervise.core.state import AttemptState, State
from prime_train.supervise.services.used_gpus import UsedGpus
from prime_train.supervise.watches.cost.spent import usd_so_far
from prime_train.views.run.status_document import describe_open_proposal

Document = Mapping[str, Any]
Row = dict[str, Any]
FAILURES_SENT = 20  # in the list; the details have more
_PHASES = {"starting": "starting", "restarting": "recovering", "paused": "paused", "": "starting"}
_ENDS = ("finished", "stopped", "failed", "died")
_SHOWN = ("uuid", "index", "fault", "used_bytes", "total_bytes", "utilisation_percent", "temperature_c")
_SHOWN_MORE = ("uncorrected_errors", "remap_pending", "remap_failed")


def name_remote(document: Document) -> str:
    """How a run on another machine is named. No folder has a name with a slash, so it is none in the folder."""
    return f"{document['machine']}/{document['job']}"


def find_twins(rows: Mapping[str, Row], documents: Iterable[Document]) -> dict[str, str]:
    """Runs in the folder that an agent reports too, with their names on the bus."""
    words = {to_word(name): name for name in rows}
    found = {}
    for document in documents:
        name, began_s = words.get(document["job"]), document.get("began_s")
        # The first supervisor of a run began at one moment; an event keeps microseconds.
        if name is not None and began_s is not None and rows[name]["began_s"] == began_s:
            found[name] = name_remote(document)
    return found


def make_remote_row(document: Document, liveness: Liveness, now_s: float) -> Row:
    """The line of a run."""
    is_over = liveness in ("ended", "failed")
    phase = _phase(document)
    state = phase if is_over and phase in _ENDS else _name_state(phase, liveness)
    failures, max_steps = document["failures"], document.get("max_steps", 0)
    last = failures[-1] if failures else None
    row = {
        "state": state,
        "resumable": state in ("stopped", "died"),
        "exit_code": document.get("exit_code"),
        "reason": _describe_silence(liveness) or document.get("reason") or None,
        "step": document.get("step", document["beat"].get("step", 0)),
        "max_steps": max_steps,
        "is_endless": max_steps >= ENDLESS_STEPS,
        **{name: document.get(name) for name in (*FIGURES, "validation_loss")},
        "unit": document.get("unit", "tokens"),
        "phase": None if is_over or phase in _PHASES else phase,
        "last_event": document["entries"][-1]["text"] if document["entries"] else None,
        "attempt": document.get("attempt", 0),
        "restarts": document.get("restarts", 0),
        "left_s": None if is_over else _left_s(document),
        "not_finite": document.get("not_finite", {}),
        "proposal": _find_proposal(document),
        "cause": last
        and {"what": last["what"], "attempt": last["attempt"], "step": last["step"], "id": last["cause_id"]},
        "alarms": document.get("alarms", []),
        "host": document["machine"],
        "supervised": liveness in ("live", "unknown"),
        "began_s": document.get("began_s"),
        "last_sign_s": document.get("heard_s"),
        "world_size": document.get("world_size"),
        "device": document.get("device"),
        "newest_complete": _newest_complete(document),
        "saving": None,
        "stopping": bool(document.get("stopping")),
        "usd": round_usd(usd_so_far(_find_attempts(document), _find_gpus(document), None if is_over else now_s)),
        "wandb": document.get("about", {}).get("wandb"),
        "left_out": document["left_out"],
        "drained": bool(document.get("is_drained")),
        "damage": _describe_damage(document),
        "machine": document["machine"],
        "liveness": liveness,
    }
    found: Row = shorten(row)
    return found


def _find_attempts(document: Document) -> State:
    """The times of the attempts, by which a run costs."""
    names = ("number", "launched_s", "ended_s", "returncode")
    attempts = (AttemptState(**{name: one.get(name) for name in names}) for one in document["attempts"])
    return State(attempts=tuple(attempts), progress_s=document.get("progress_s"))


def _find_gpus(document: Document) -> UsedGpus | None:
    about, device = document.get("about"), document.get("device")
    if about is None:
        return None
    if about["used"] is not None:
        return UsedGpus(**about["used"])
    return None if about["is_served"] or not device else UsedGpus(device, document["world_size"])


def _find_proposal(document: Document) -> Row | None:
    one = document.get("proposal")
    if one is None:
        return None
    found = InstabilityFound(**one | {"values": tuple(one["values"]), "auto": False})
    return describe_open_proposal(State(instability=found, is_proposed=True))


def _phase(document: Document) -> str:
    """What the run does, by its events, or by the end that only its agent saw."""
    beat = document["beat"].get("state", "")
    found: str = beat if beat in _ENDS else document["state"] or beat
    return found


def _name_state(phase: str, liveness: Liveness) -> str:
    return liveness if liveness in ("unknown", "lost") else _PHASES.get(phase, "running")


def _describe_silence(liveness: Liveness) -> str:
    silent = "its agent is silent; the run may go on"
    return {"unknown": silent, "lost": f"{silent}, and nothing was heard for more than a minute"}.get(liveness, "")


def _left_s(document: Document) -> float | None:
    """By the speed since the attempt's first step."""
    max_steps = document.get("max_steps", 0)
    left = max_steps - document.get("step", 0)
    if document.get("stepped_s") is None or max_steps >= ENDLESS_STEPS or left <= 0:
        return None
    steps, took_s = document["step"] - document["first_step"], document["progress_s"] - document["stepped_s"]
    return round(left * took_s / steps, 1) if steps > 0 and took_s > 0 else None


def _newest_complete(document: Document) -> int | None:
    return document.get("newest_complete") or None


def _describe_damage(document: Document) -> str | None:
    counts = ((document.get("gaps", 0), "events never arrived"), (document.get("damaged", 0), "lines are no events"))
    return ", ".join(f"{count} {text}" for count, text in counts if count) or None


# --- machines and devices ---------------------------------------------------------------------------


def map_remote_devices(document: Document, liveness: Liveness) -> dict[str, Row]:
    """The machine with its GPUs, or a device for each rank where it reports none; nothing for a run that is over.

    Of a run on several machines the others are there too, each with its ranks, also while it is paused.
    """
    if liveness in ("ended", "failed") or document.get("is_drained"):
        return {}
    # An agent of another version reports no number of machines.
    count, is_paused = document.get("about", {}).get("machines", 1), document["state"] == "paused"
    if is_paused and count < 2:
        return {}
    name, here = name_remote(document), document["machine"]
    machines: dict[str, Row] = {
        name_member(name, number) if number else here: {"devices": {}, "members": [member]}
        for number, member in enumerate(_list_members(document, count))
    }
    machines[here] = machines.get(here, {"devices": {}}) | {"liveness": liveness}
    if is_paused:
        return machines
    world_size, own = document.get("world_size"), machines[here]["devices"]
    placed = [(find_member(rank, world_size, count), rank, one) for rank, one in _list_ranks(document)]
    _add_gpus(own, document, {one["pid"]: rank for number, rank, one in placed if number == 0})
    has_gpus = bool(own)
    for number, rank, one in placed:
        if number < MEMBERS_SHOWN and (number or not has_gpus):
            devices = machines[name_member(name, number)]["devices"] if number else own
            cell = {"index": rank, "kind": one["device"], "work": [_work(document, rank)], "xids": [], "left_out": []}
            devices[f"{name}/{rank}"] = shorten(cell)
    return machines


def _add_gpus(devices: Row, document: Document, by_pid: Mapping[int, int]) -> None:
    for gpu in document.get("gpus", []):
        cell = {each: gpu.get(each) for each in (*_SHOWN, *_SHOWN_MORE)} | {
            "kind": "GPU",
            "xids": [],
            "left_out": [],
        }
        cell["work"] = [_work(document, by_pid[pid]) for pid in gpu["pids"] if pid in by_pid]
        devices[gpu["uuid"] or f"GPU {gpu['index']}"] = shorten(cell)


def _list_members(document: Document, count: int) -> list[Row]:
    left_out = {one["uuid"]: one["test"] for one in document["left_out"] if find_machine(one["uuid"]) >= 0}
    is_paused, is_stopping = document["state"] == "paused", bool(document.get("stopping"))
    return list_members(name_remote(document), count, left_out, is_paused=is_paused, is_stopping=is_stopping)


def join_machines(parts: Iterable[Mapping[str, Row]]) -> dict[str, Row]:
    """The machines that several runs use. A GPU that several report has all their work; else the first one counts."""
    found: dict[str, Row] = {}
    for part in parts:
        for host, machine in part.items():
            before = found.get(host)
            if before is None:
                found[host] = machine
                continue
            found[host] = {**machine, **before, "devices": _join_devices(before, machine)}
            if members := [*before.get("members", ()), *machine.get("members", ())]:
                found[host]["members"] = members
    return found


def _join_devices(first: Row, second: Row) -> Row:
    devices = {**second["devices"], **first["devices"]}
    for name in first["devices"].keys() & second["devices"].keys():
        others = [work for work in second["devices"][name]["work"] if work not in first["devices"][name]["work"]]
        devices[name] = {**devices[name], "work": [*first["devices"][name]["work"], *others]}
    return devices


def _list_ranks(document: Document) -> Iterator[tuple[int, Document]]:
    return iter(sorted((int(rank), one) for rank, one in document["ranks"].items()))


def _work(document: Document, rank: int) -> Row:
    return {"run": name_remote(document), "rank": rank, "step": _rank_step(document, rank), "lag": _lag(document, rank)}


def _rank_step(document: Document, rank: int) -> int | None:
    """Rank 0 reports the step for all ranks that report none."""
    step: int | None = document["ranks"][str(rank)].get("step", document.get("step"))
    return step


def _lag(document: Document, rank: int) -> int | None:
    steps = [one["step"] for one in document["ranks"].values() if "step" in one]
    own = document["ranks"][str(rank)].get("step")
    return None if own is None or not steps else max(steps) - own


# --- one run ----------------------------------------------------------------------------------------


def make_remote_detail(document: Document, liveness: Liveness, now_s: float) -> Row:
    """Everything of one run."""
    newest = _newest_complete(document)
    found: Row = {
        "name": name_remote(document),
        "path": shorten(f"{document.get('run', document['job'])} on {document['machine']}"),
        "row": make_remote_row(document, liveness, now_s),
        "replicas": [_make_replica(document, rank, one) for rank, one in _list_ranks(document)],
        "curves": _draw(document),
        "marks": [shorten(mark) for mark in document["marks"]],
        "failures": list_remote_failures(document),
        "entries": [shorten(entry) for entry in document["entries"]],
        "settings": [shorten(one) for one in document["settings"]],
        "values": shorten(document.get("values", {})),
        "checkpoints": {
            "checkpoints": [_make_checkpoint(document, one, now_s) for one in document["checkpoints"]],
            "resume_step": newest,
            "problem": None,
        },
        "traces": [_make_trace(name, one) for name, one in document["traces"].items()],
        "commands": [shorten(one) for one in document["decided"].get("commands", [])],
    }
    return found


def list_remote_failures(document: Document) -> list[Row]:
    return [shorten(one) for one in document["failures"]]


def _make_replica(document: Document, rank: int, one: Document) -> Row:
    found: Row = shorten({"rank": rank, "pid": one["pid"], "device": one["device"]})
    found["times"] = document.get("times", {}) if rank == 0 else {}
    found |= {"step": _rank_step(document, rank), "lag": _lag(document, rank), "last_sign_s": document.get("heard_s")}
    found |= {"loss": document.get("loss") if rank == 0 else None, "settings": document.get("settings_version")}
    return found | {"checkpoint": _newest_complete(document)}


def _draw(document: Document) -> dict[str, Row]:
    """Steps and values of each curve that has a point."""
    curves = {}
    for of, columns in (("curve", COLUMNS), ("held_out", ("held_out",)), ("rate", ("lr",))):
        points = document[of].get("points", [])
        for place, name in enumerate(columns, start=1):
            # A point that an earlier release kept has fewer columns.
            known = [(point[0], point[place]) for point in points if len(point) > place and point[place] is not None]
            if known:
                values = [float(f"{value:.6g}") for _, value in known]
                curves[name] = {"step": [step for step, _ in known], "value": values}
    return curves


def _make_checkpoint(document: Document, one: Document, now_s: float) -> Row:
    found = {"step": one["step"], "size_bytes": one["size_bytes"], "age_s": max(0.0, now_s - one["saved_s"])}
    found |= {"pinned": one["step"] in document.get("pins", []), "resume": one["step"] == _newest_complete(document)}
    return found | {"complete": True, "problem": None}


def _make_trace(name: str, one: Document) -> Row:
    total = count_parts(one["size_bytes"])
    note = one["note"] or ("" if is_whole(one) else f"{one['parts']} of {total} parts have come")
    about: Row = shorten({"name": name, "size_bytes": one["size_bytes"], "saved_s": one["saved_s"], "note": note})
    return about | {"ready": is_whole(one)}
