"""What W&B keeps of the runs that are sent to it: rows, summaries and ends, by the run's id. No network."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Sent:
    """One run. `history`: rows in the order of their arrival; `exit_codes`: one for each reported end."""

    config: str = "{}"
    name: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_codes: list[int] = field(default_factory=list)


class WandbStore:
    def __init__(self) -> None:
        self.runs: dict[str, Sent] = {}

    def answer(self, name: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The data for a query or mutation of a client that logs a run."""
        match name:
            case "RunResumeStatus":
                known = self.runs.get(str(variables["name"]))
                owner = {"id": "e", "name": "me"}
                bucket = None if known is None else self._bucket(str(variables["name"]), known)
                return {"model": {"id": "p", "name": variables["project"], "entity": owner, "bucket": bucket}}
            case "UpsertBucket":
                run_id = str(variables["name"])
                is_new = run_id not in self.runs
                sent = self.runs.setdefault(run_id, Sent())
                sent.config = variables.get("config") or sent.config
                sent.name = variables.get("displayName") or sent.name
                project = {"id": "p", "name": "nano", "entity": {"id": "e", "name": "me"}}
                bucket = {"id": f"id-{run_id}", "name": run_id, "displayName": sent.name, "description": None}
                more = {"config": sent.config, "sweepName": None, "project": project}
                lines = {"historyLineCount": len(sent.history)}
                return {"upsertBucket": {"bucket": bucket | more | lines, "inserted": is_new}}
            case "CreateRunFiles":
                return {"createRunFiles": {"runID": f"id-{variables['run']}", "uploadHeaders": [], "files": []}}
        return {}

    @staticmethod
    def _bucket(run_id: str, sent: Sent) -> dict[str, Any]:
        return {
            "id": f"id-{run_id}",
            "name": run_id,
            "summaryMetrics": json.dumps(sent.summary),
            "displayName": sent.name,
            "logLineCount": 0,
            "historyLineCount": len(sent.history),
            "eventsLineCount": 0,
            "historyTail": json.dumps([json.dumps(row) for row in sent.history[-1:]]),
            "eventsTail": "[]",
            "config": sent.config,
            "tags": [],
            "notes": None,
            "wandbConfig": json.dumps({"t": 1}),
        }

    def take(self, run_id: str, body: bytes) -> None:
        """A piece of the stream of a run's files. The offset counts lines, so a repeated piece changes nothing."""
        sent, raw = self.runs.setdefault(run_id, Sent()), json.loads(body)
        files = raw.get("files") or {}
        history = files.get("wandb-history.jsonl")
        if history:
            rows = [json.loads(line) for line in history["content"]]
            sent.history[int(history["offset"]) :] = rows
        for line in files.get("wandb-summary.json", {}).get("content", []):
            sent.summary.update(json.loads(line))
        if raw.get("complete"):
            sent.exit_codes.append(int(raw.get("exitcode", 0)))
