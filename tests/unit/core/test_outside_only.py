"""Only core/outside.py opens what comes from outside: every other place that opens a file is here, with its reason."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import prime_train

ROOT = Path(prime_train.__file__).parent
_READS = {"read_text", "read_bytes"}
_OPENS = {("os", "open"), ("os", "fdopen"), ("io", "open"), ("gzip", "open"), ("gzip", "GzipFile")}
_LOADS = {("json", "load"), ("tomli", "load"), ("tomllib", "load"), ("pickle", "load"), ("yaml", "load")}

SHIPPED = "a file of this package"
STDIN = "the order of the parent process, on standard input"
PROC = "a file of /proc or /sys"
WRITES = "writes a file of its own"
PACKAGE = "the source of an installed package, in a child with a deadline"

ALLOWED = {
    "backups/pull.py": (1, WRITES),
    "backups/sync.py": (1, "its own lock"),
    "bus/nats_server.py": (3, "the log of the server that it starts"),
    "checkpoints/packing/archive.py": (2, "appends to the head of a packed file, which outside.open_descriptor opens"),
    "checkpoints/in_use.py": (4, "files of /proc, and its own marks"),
    "checkpoints/layout.py": (1, "syncs the files that the trainer has just written"),
    "checkpoints/packing/segments.py": (1, WRITES),
    "checkpoints/removal.py": (1, "folders in which it deletes, without following a link"),
    "cli/terminal/crash.py": (2, WRITES),
    "cli/diagnose.py": (1, "standard input"),
    "cli/init/github_actions.py": (1, SHIPPED),
    "cli/lint/fix.py": (1, WRITES),
    "cli/monitor.py": (1, "appends to the file that GitHub names"),
    "cli/run/detached.py": (1, "the log that it has just opened for the supervisor"),
    "cli/run/spot.py": (1, "/etc/machine-id"),
    "cli/terminal/standard_streams.py": (2, "/dev/null, for a closed stream"),
    "away/slurm/commands.py": (1, "its own lock"),
    "away/verdict/wandb_program.py": (1, STDIN),
    "config/prime_rl/renames.py": (2, SHIPPED),
    "config/prime_rl/schema.py": (1, "the text of a file that outside.open_regular opens"),
    "config/prime_rl/suggest.py": (2, SHIPPED),
    "config/prime_rl/validators.py": (1, SHIPPED),
    "control/access.py": (2, "the token that it makes"),
    "control/server.py": (2, SHIPPED),
    "core/installation.py": (1, "the metadata of this package, as pip wrote it"),
    "core/outside.py": (6, "this is the module"),
    "core/process_id.py": (1, PROC),
    "core/redaction.py": (2, SHIPPED),
    "core/rundir.py": (5, WRITES),
    "core/spans.py": (1, WRITES),
    "diagnose/signatures.py": (2, SHIPPED),
    "environments/verifiers_program/protocol.py": (1, "standard output"),
    "estimate/time/measured_rows.py": (1, SHIPPED),
    "facts/data_lengths_program.py": (4, "training data of any size, in a child with a deadline"),
    "facts/host.py": (5, PROC),
    "facts/interpreter_program.py": (2, PACKAGE),
    "facts/nvml_program.py": (1, PROC),
    "facts/trials.py": (1, PROC),
    "facts/prime_rl_program.py": (1, STDIN),
    "live_checkpoint.py": (1, "in the process of the training: files that it syncs"),
    "live_report.py": (1, "in the process of the training: its own file"),
    "facts/transforms_program.py": (1, STDIN),
    "live_plans.py": (2, "in the process of the training: what its supervisor wrote"),
    "models/read/architectures_program.py": (1, PACKAGE),
    "models/read/chat_template_program.py": (1, STDIN),
    "models/read/read_files_program.py": (1, STDIN),
    "models/read/tokenizer_program.py": (1, STDIN),
    "prices/store.py": (2, "the shipped table, and its own lock"),
    "programs/command/folder_lock.py": (1, "a folder, to lock it"),
    "programs/prime_rl/launcher.py": (1, "the program that it starts"),
    "programs/prime_rl/sources.py": (2, PROC),
    "programs/vllm/extension/prime_train_weights.py": (2, "the hand-over, in vLLM's process and by its hash"),
    "registry/gpus.py": (2, SHIPPED),
    "registry/known.py": (2, SHIPPED),
    "rules/explain.py": (1, SHIPPED),
    "checkpoints/pins.py": (1, "the pin that it makes"),
    "views/run/plots.py": (1, "the working directory, to come back to it"),
    "rules/keys.py": (1, SHIPPED),
    "supervise/evidence/evidence_program.py": (
        2,
        "/proc and logs, in a child with a deadline and the standard library alone",
    ),
    "views/compare/picture.py": (1, STDIN),
    "config/foreign/recognise.py": (2, "the shipped table of formats"),
    "registry/foreign_keys.py": (2, "the shipped tables of keys"),
    "registry/trainers.py": (1, SHIPPED),
    "registry/foreign.py": (1, "the shipped tables of formats"),
    "registry/launchers.py": (2, "the shipped table of launchers"),
    "supervise/launch/control_group.py": (2, PROC),
    "supervise/launch/guard.py": (1, PROC),
    "supervise/launch/shim.py": (1, PROC),
    "trainer/audio/scan_program.py": (1, STDIN),
    "supervise/processes/beside.py": (2, "logs and locks of agent and mirror"),
    "trainer/audio/clip_files.py": (1, WRITES),
    "supervise/processes/lock.py": (1, "the lock"),
    "supervise/processes/requests.py": (1, "a folder, to list it"),
    "supervise/machines/follower.py": (1, "the end of the log of a launch, which it appends to"),
    "supervise/processes/process.py": (2, "appends to the log of a launch; /proc"),
    "supervise/watches/disk/written.py": (2, PROC),
    "supervise/watches/host/host_program.py": (1, PROC),
    "supervise/watches/kernel_log.py": (1, "/dev/kmsg"),
    "supervise/watches/preemption/watch.py": (1, PROC),
    "supervise/watches/sampler.py": (1, "appends to the log of a watch"),
    "trainer/saves/convert_checkpoint.py": (2, "the order of the parent process; the lock of a folder"),
    "trainer/cache.py": (1, "the lock of an entry of the cache"),
    "trainer/data/progress.py": (4, "what the processes of this run count, beside its tokens in the cache; /proc"),
    "trainer/data/token_files.py": (1, WRITES),
    "trainer/data/token_parts.py": (2, "the cache, whose entries have checksums"),
    "trainer/data/worker_count.py": (1, PROC),
    "trainer/device.py": (1, PROC),
    "trainer/machine_files.py": (1, WRITES),
    "trainer/loops/metrics.py": (1, "appends to metrics.jsonl, and follows no link"),
    "trainer/rl/engines/weights.py": (1, "the weights that it has just written"),
    "trainer/loops/step_spans.py": (3, "the traces that it writes; /proc"),
    "trainer/saves/tensor_files.py": (1, WRITES),
}


def _opened(source: str) -> Iterator[str]:
    """What opens or reads a file by its path, as it is written."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id="open"):
                yield "open"
            case ast.Attribute(value=ast.Name(id="outside")):
                continue
            case ast.Attribute(value=ast.Name(id=module), attr=name) if (module, name) in _OPENS | _LOADS:
                yield f"{module}.{name}"
            case ast.Attribute(attr=name) if name in _READS:
                yield name
            case ast.Attribute(attr="open", value=ast.Call() | ast.BinOp()):
                yield "Path.open"


def test_nothing_else_opens_what_comes_from_outside() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): count
        for path in sorted(ROOT.rglob("*.py"))
        if (count := Counter(_opened(path.read_text())).total())
    }
    more = {name: count for name, count in found.items() if count > ALLOWED.get(name, (0, ""))[0]}
    assert not more, f"read with prime_train.core.outside, or give the reason here: {more}"
    assert found == {name: count for name, (count, _) in ALLOWED.items()}, "an entry above has no use any more"


@pytest.mark.parametrize(
    "source",
    [
        "open(path)",
        "path.read_text()",
        "Path(name).open('rb')",
        "(folder / 'x').open()",
        "json.load(file)",
        "os.open(path, os.O_RDONLY)",
        "gzip.open(path)",
    ],
)
def test_each_way_to_open_a_file_is_seen(source: str) -> None:
    assert list(_opened(source))


@pytest.mark.parametrize("source", ["outside.read_text(path, 1)", "child.open()", "json.loads(text)"])
def test_other_calls_are_not(source: str) -> None:
    assert not list(_opened(source))
