"""What an agent sends about a failed attempt: bounded, masked, once, and what any file of the run may hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prime_train.bus.base import MESSAGE_BYTES, encode_message
from prime_train.core.rundir import RunDir
from prime_train.events import AttemptEnded, Record
from prime_train.supervise.agent.evidence import EvidenceQueue, read_evidence


def ended(attempt: int, outcome: str = "failed") -> Record:
    return Record(1.0, "supervisor", attempt, AttemptEnded(attempt, 1, outcome, "bug", "", "", "", "", 0), "life")


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    found = RunDir(tmp_path / "run")
    for attempt in (1, 2, 3):
        found.evidence(attempt).mkdir(parents=True)
        found.log(attempt, "trainer").write_text(f"a token hf_{'a' * 34}\nattempt {attempt} failed\n")
    return found


def test_each_failed_attempt_is_sent_once_also_by_the_next_agent(run_dir: RunDir) -> None:
    queue = EvidenceQueue(run_dir, ())
    for record in (ended(1), ended(2, "stopped"), ended(3), ended(1)):
        queue.add(record)
    first = queue.next_message()
    assert first is not None
    assert first is queue.next_message()
    assert first.attempt == 1
    queue.acknowledge(1)
    again = EvidenceQueue(run_dir, ())  # the agent was killed
    for record in (ended(1), ended(3)):
        again.add(record)
    second = again.next_message()
    assert second is not None
    assert second.attempt == 3
    again.acknowledge(3)
    assert again.next_message() is None


def test_logs_are_first_and_stacks_before_the_rest_without_secrets(run_dir: RunDir) -> None:
    for name in ("process-1.txt", "stacks-trainer-1.txt", "where.txt", "last-lines-trainer.log", ".hidden"):
        (run_dir.evidence(1) / name).write_text(f"{name} has s3cret-value")
    found = read_evidence(run_dir, 1, ["s3cret-value"])
    assert [one["name"] for one in found] == ["trainer.log", "stacks-trainer-1.txt", "where.txt", "process-1.txt"]
    text = json.dumps(found)
    assert "hf_aaa" not in text
    assert "s3cret" not in text
    assert found[0]["text"].endswith("attempt 1 failed")


@pytest.mark.parametrize("piece", ["\x01", "\U0001f600", "\udcff", '"\\', "plain text\n"])
def test_files_with_any_bytes_make_a_message(run_dir: RunDir, piece: str) -> None:
    content = (piece * 400_000).encode(errors="surrogateescape")
    for number in range(100):
        (run_dir.evidence(1) / f"file{number}.txt").write_bytes(content)
    (run_dir.evidence(1) / "stacks-link.txt").symlink_to("/etc/passwd")
    (run_dir.evidence(1) / "stacks-folder.txt").mkdir()
    queue = EvidenceQueue(run_dir, ())
    queue.add(ended(1))
    message = queue.next_message()
    assert message is not None
    assert len(encode_message(message.body, message.id)) <= MESSAGE_BYTES
    assert len(message.body["files"]) <= 32
    assert "root:" not in json.dumps(message.body)


@pytest.mark.parametrize("content", ["", "[", "{}", '["x", null, true]', "5"])
def test_a_damaged_list_of_what_was_sent_sends_it_again(run_dir: RunDir, content: str) -> None:
    run_dir.bus.mkdir(parents=True)
    (run_dir.bus / "evidence.json").write_text(content)
    queue = EvidenceQueue(run_dir, ())
    queue.add(ended(1))
    assert queue.next_message() is not None
