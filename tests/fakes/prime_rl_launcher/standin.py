"""What each program of the stand-in does. Standard library only; it stands alone, without this repository's packages.

Modelled on prime-rl 2026-08 (entrypoints/rl.py, utils/process.py, utils/pathing.py, trainer/rl/train.py): who starts
whom and in which order, folders and markers, log lines with colours, exit codes, and what follows SIGTERM. A config
without [run] gets the folders of 2026-05: no attempts, the orchestrator's part below run_default/.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import tomllib
import traceback
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPTIONS: dict[str, Any] = json.loads(os.environ.get("PRIME_RL_STANDIN", "{}"))
FOREVER_S = 3600.0
GREEN, PLAIN = "\x1b[32m", "\x1b[0m"


def report(level: str, text: str) -> None:
    """A line as loguru writes it with LOGURU_FORCE_COLORS=1."""
    sys.stdout.write(f"{GREEN}{time.strftime('%H:%M:%S')}{PLAIN} {level:>7} {text}\n")
    sys.stdout.flush()


def wait_for(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.005)


def read_config(arguments: list[str]) -> dict[str, Any]:
    """`@ FILE`, TOML or JSON."""
    path = Path(arguments[arguments.index("@") + 1])
    text = path.read_text(encoding="utf-8")
    config: dict[str, Any] = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    return config


def has_fault(name: str) -> bool:
    """Whether this start misbehaves so: the first `times` of them do."""
    starts = int(os.environ.get("STANDIN_START", "1"))
    return OPTIONS.get("fault") == name and starts <= int(OPTIONS.get("times", 1))


def is_due(name: str, step: int) -> bool:
    return has_fault(name) and step >= int(OPTIONS.get("at_step", 5))


class Folders:
    """Where a run writes, in either layout."""

    def __init__(self, run: Path, ckpt: Path | None, *, has_named_runs: bool) -> None:
        self.run = run
        own = run if has_named_runs else run / "run_default"
        self.checkpoints = (ckpt or run) / "checkpoints"
        self.progress = self.checkpoints if has_named_runs else own / "checkpoints"
        self.broadcasts, self.rollouts = own / "broadcasts", own / "rollouts"
        self.metrics = run / "metrics.jsonl" if has_named_runs else None

    @classmethod
    def of(cls, config: dict[str, Any]) -> Folders:
        return cls(
            Path(config["run"]), config["ckpt"] and Path(config["ckpt"]), has_named_runs=config["has_named_runs"]
        )

    def row(self, step: int, **values: float) -> None:
        if self.metrics is None:
            return
        line = json.dumps({"step": step, "time": time.time(), **{k.replace("__", "/"): v for k, v in values.items()}})
        with open(self.metrics, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")


# --- the launcher ----------------------------------------------------------------------------------


class Launcher:
    def __init__(self, root: str, arguments: list[str]) -> None:
        config = read_config(arguments)
        if "prime_train" in config:
            sys.stderr.write(
                "ValidationError: 1 validation error for RLConfig\nprime_train\n  Extra inputs are not permitted\n"
            )
            sys.exit(1)
        self.root, self.config = root, config
        self.has_named_runs = "run" in config
        output_dir = Path(config.get("output_dir", "outputs"))
        name = config.get("run", {}).get("name") or f"{uuid.uuid4().hex[:8]}"
        self.run_dir = output_dir / name if self.has_named_runs else output_dir
        saving = config.get("ckpt")
        self.ckpt_dir = Path(saving["output_dir"]) if saving and "output_dir" in saving else None
        self.folders = Folders(self.run_dir, self.ckpt_dir, has_named_runs=self.has_named_runs)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.threads: list[threading.Thread] = []
        self.failures: list[str] = []
        self.ended: dict[str, threading.Event] = {}

    def main(self) -> None:
        step = self.resume_step()
        self.refuse_used(resuming=step is not None)
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.clean_future_steps(-1 if step is None else step)
        log_dir = self.make_log_dir()
        signal.signal(signal.SIGTERM, self.on_sigterm)
        shared = {
            "run": str(self.run_dir),
            "ckpt": str(self.ckpt_dir) if self.ckpt_dir else None,
            "has_named_runs": self.has_named_runs,
            "step": step or 0,
            "max_steps": self.config["max_steps"],
            "interval": (self.config.get("ckpt") or {}).get("interval"),
            "keep_last": (self.config.get("ckpt") or {}).get("keep_last"),
            "port": self.config.get("inference", {}).get("server", {}).get("port", 8000),
            "sft": self.root == "sft",
        }
        configs = self.run_dir / "configs"
        (configs / "envs" / "train").mkdir(parents=True, exist_ok=True)
        report("INFO", f"Starting {self.root.upper()} run")
        if self.root == "rl":
            self.start("inference", ["inference", "@", self.write(configs / "inference.json", shared)], log_dir)
            train = self.config["orchestrator"]["train"]
            for source in train.get("source", train.get("env", [])):
                at = self.write(
                    configs / "envs" / "train" / f"{source['name']}.json", shared | {"name": source["name"]}
                )
                report("INFO", f"Starting env server env-train-{source['name']}")
                self.start(f"envs/train/{source['name']}", ["env-server", "@", at], log_dir)
            self.start(
                "orchestrator", ["orchestrator", "@", self.write(configs / "orchestrator.json", shared)], log_dir
            )
        trainer = self.write(configs / "trainer.json", shared)
        ranks = self.config.get("deployment", {}).get("num_train_gpus", 1)
        torchrun = ["torchrun", f"--log-dir={log_dir / 'trainer' / 'torchrun'}", f"--nproc-per-node={ranks}"]
        self.start("trainer", [*torchrun, "-m", f"prime_rl.trainer.{self.root}.train", "@", trainer], log_dir)
        report("SUCCESS", "Startup complete. Showing orchestrator logs...")
        shown = "orchestrator.log" if self.root == "rl" else "trainer.log"
        self.processes.append(subprocess.Popen(["tail", "-F", str(log_dir / shown)], stderr=subprocess.DEVNULL))
        awaited = ["orchestrator", "trainer"] if self.root == "rl" else ["trainer"]
        while not all(self.ended[name].is_set() for name in awaited):
            if self.failures:
                report("ERROR", f"Error: {self.failures[0]}")
                report("ERROR", "Terminating all processes...")
                self.end_all()
                sys.exit(1)
            time.sleep(0.05)  # a second in prime-rl
        if self.failures:  # of a part that was awaited: seen after the last look at the errors
            report("ERROR", self.failures[0])
            self.end_all()
            sys.exit(1)
        report("SUCCESS", "Training finished!")
        self.end_all()

    # --- before it starts anything ---

    def resume_step(self) -> int | None:
        if self.has_named_runs:
            resume = self.config.get("resume")
            if resume is None:
                return None
            step: int | None = resume.get("step")
        else:
            step = (self.config.get("ckpt") or {}).get("resume_step")
            if step is None:
                return None
        if step is None or step == -1:
            steps = sorted(int(path.name.split("_")[-1]) for path in self.folders.checkpoints.glob("step_*"))
            if not steps:
                report("WARNING", f"No checkpoints found in {self.folders.checkpoints}. Starting from scratch.")
                return None
            step = steps[-1]
        return step

    def refuse_used(self, *, resuming: bool) -> None:
        if resuming or not self.run_dir.exists():
            return
        if any(path.name != "configs" for path in self.run_dir.iterdir()):
            raise FileExistsError(
                f"Run directory '{self.run_dir}' already contains artifacts from a previous run. To resume the latest "
                "step of the previous run, pass --resume (or --resume.step N)."
            )

    def clean_future_steps(self, step: int) -> None:
        for root in (self.folders.rollouts, self.folders.broadcasts):
            for path in root.glob("step_*"):
                if int(path.name.split("_")[-1]) > step:
                    subprocess.run(["rm", "-rf", str(path)], check=True)

    def make_log_dir(self) -> Path:
        logs = self.run_dir / "logs"
        logs.mkdir(exist_ok=True)
        if not self.has_named_runs:
            return logs
        number = 1 + max((int(path.name.removeprefix("attempt_")) for path in logs.glob("attempt_*")), default=0)
        folder = logs / f"attempt_{number}"
        folder.mkdir()
        link = logs / f".attempt_{number}"
        link.symlink_to(folder.name)
        link.replace(logs / "latest")
        return folder

    @staticmethod
    def write(path: Path, document: dict[str, Any]) -> str:
        path.write_text(json.dumps(document), encoding="utf-8")
        return str(path)

    # --- its processes ---

    def start(self, name: str, command: list[str], log_dir: Path) -> None:
        path = log_dir / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        ended = self.ended[name] = threading.Event()

        def monitor() -> None:
            if process.wait() != 0:
                self.failures.append(f"{name.capitalize()} failed with exit code {process.returncode}")
            ended.set()

        self.processes.append(process)
        self.threads.append(threading.Thread(target=monitor, daemon=True))
        self.threads[-1].start()

    def on_sigterm(self, *_: object) -> None:
        report("WARNING", "Received SIGTERM, terminating all processes...")
        self.end_all()
        sys.exit(1)

    def end_all(self) -> None:
        for thread in self.threads:
            thread.join(timeout=float(OPTIONS.get("join_s", 0.1)))  # 5 s in prime-rl
        for process in self.processes:
            if process.poll() is not None:
                continue
            below = subprocess.run(
                ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=False
            )
            for pid in (*map(int, below.stdout.split()), process.pid):
                send(pid, signal.SIGTERM)
            try:
                process.wait(timeout=float(OPTIONS.get("tree_s", 60.0)))
            except subprocess.TimeoutExpired:
                process.kill()


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


# --- what it starts --------------------------------------------------------------------------------


class Answer(http.server.BaseHTTPRequestHandler):
    """The routes of vLLM's server that somebody asks."""

    def do_GET(self) -> None:
        known = {"/health": "", "/metrics": "vllm:generation_tokens_total 1\n", "/v1/models": '{"data": []}'}
        self.send_response(200 if self.path in known else 404)
        self.end_headers()
        self.wfile.write(known.get(self.path, "").encode())

    def log_message(self, format: str, *args: object) -> None:
        report("INFO", format % args)


def inference(config: dict[str, Any]) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", config["port"]), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    report("INFO", "Application startup complete.")
    folders = Folders.of(config)
    if not has_fault("inference_exits"):
        time.sleep(FOREVER_S)
    wait_for(lambda: (folders.broadcasts / f"step_{OPTIONS.get('at_step', 5)}" / "STABLE").exists())
    report("INFO", "Shutting down")


def env_server(config: dict[str, Any]) -> None:
    folders = Folders.of(config)
    report("INFO", f"Environment {config['name']} serves on tcp://127.0.0.1:5000")
    if has_fault("env_raises"):
        wait_for(lambda: (folders.broadcasts / f"step_{OPTIONS.get('at_step', 5)}" / "STABLE").exists())
        try:
            raise ConnectionError("sandbox is gone")
        except ConnectionError:
            traceback.print_exc()
    time.sleep(FOREVER_S)


def orchestrator(config: dict[str, Any]) -> None:
    folders = Folders.of(config)
    if OPTIONS.get("ignores_resume"):
        report("WARNING", f"No checkpoints found in {folders.checkpoints}. Starting from scratch.")
    report("INFO", "Waiting for inference pool to be ready")
    wait_for(lambda: is_healthy(config["port"]))
    total_tokens = 0
    for step in range(config["step"], config["max_steps"]):
        if step > config["step"]:
            wait_for((folders.broadcasts / f"step_{step}" / "STABLE").exists)
        interval = config["interval"]
        if interval and step > config["step"] and step % interval == 0:
            save_progress(folders, step)
        if is_due("env_raises", step):
            report("INFO", "Train batch 0/8 (0.0%)... 8 inflight")
            time.sleep(FOREVER_S)
        if step > 0 and not is_healthy(config["port"]):
            report("WARNING", "Inference pool does not answer, waiting")
            wait_for(lambda: is_healthy(config["port"]))
        report("INFO", "Train batch 4/8 (50.0%)... 4 inflight")
        rollouts = folders.rollouts / f"step_{step}" / "train" / "effective"
        rollouts.mkdir(parents=True, exist_ok=True)
        (rollouts / "traces.tmp").write_text("{}\n", encoding="utf-8")
        (rollouts / "traces.tmp").rename(rollouts / "traces.jsonl")
        total_tokens += 1000
        folders.row(step, progress__total_tokens=(step + 1) * 1000, time__step=0.01)
        report("SUCCESS", f"Step {step} | 0.01s | Reward 0.5000 | Trainable 8/8 (100.0%) | Max Off-Policy 1")
    if has_fault("tail_deadlocks"):
        report("INFO", "Draining pipeline")
        report("INFO", "Waiting for new policy...")
        time.sleep(FOREVER_S)
    wait_for((folders.broadcasts / f"step_{config['max_steps']}" / "STABLE").exists)
    save_progress(folders, config["max_steps"])
    report("SUCCESS", "Orchestrator finished.")


def is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def save_progress(folders: Folders, step: int) -> None:
    folder = folders.progress / f"step_{step}" / "orchestrator"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "progress.pt").write_bytes(b"progress")


def torchrun(arguments: list[str]) -> None:
    """One process a rank, each to files of its own, rank 0 to the log as well; the first that fails ends the others."""
    named = dict(word.removeprefix("--").split("=", 1) for word in arguments if word.startswith("--"))
    ranks = []
    for rank in range(int(named["nproc-per-node"])):
        folder = Path(named["log-dir"]) / f"run_{uuid.uuid4().hex[:4]}" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        command = [sys.executable, "-ES", __file__, "trainer", *arguments]
        marked = os.environ | {"RANK": str(rank)}
        with open(folder / "stderr.log", "wb") as errors, open(folder / "stdout.log", "wb") as out:
            kept, told = (out, errors) if rank else (None, None)
            ranks.append(subprocess.Popen(command, env=marked, stdout=kept, stderr=told))
    while True:
        failed = next((number for number, rank in enumerate(ranks) if rank.poll() not in (None, 0)), None)
        if failed is not None:
            for other in ranks:
                other.terminate()
            code = ranks[failed].returncode
            sys.stderr.write(
                f"ChildFailedError:\n  rank      : {failed} (local_rank: {failed})\n  exitcode  : {code}\n"
            )
            sys.exit(1)
        if all(rank.poll() == 0 for rank in ranks):
            return
        time.sleep(0.01)


def trainer(config: dict[str, Any]) -> None:
    folders, rank = Folders.of(config), int(os.environ["RANK"])
    if has_fault("ignores_sigterm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    kind = "SFT" if config["sft"] else "RL"
    report("INFO", f"Starting {kind} trainer in World(world_size=1, rank={rank})")
    if config["step"]:
        folder = folders.checkpoints / f"step_{config['step']}" / "trainer"
        if not (folder / ".metadata").exists():
            raise FileNotFoundError(f"Checkpoint not found at {folder}")
        report("INFO", f"Resuming training from checkpoint step {config['step']}")
    report("INFO", f"Starting training loop (max_steps={config['max_steps']})")
    for step in range(config["step"], config["max_steps"]):
        if step > config["step"]:
            save_if_due(config, folders, step, rank)
        if not config["sft"]:
            wait_for((folders.rollouts / f"step_{step}" / "train" / "effective" / "traces.jsonl").exists)
        misbehave(step, rank)
        time.sleep(float(OPTIONS.get("step_s", 0.02)))
        if rank == 0:
            report_step(folders, step, kind)
            publish(folders, step + 1)
    if rank == 0:
        report("INFO", "Writing final checkpoint")
        save(config, folders, config["max_steps"])
        report("SUCCESS", f"{kind} trainer finished!")


def report_step(folders: Folders, step: int, kind: str) -> None:
    loss = 1.0 / (step + 1)
    more = "Entropy 0.5000 | Mismatch KL 0.0010 | " if kind == "RL" else ""
    report(
        "SUCCESS",
        f"Step {step} |   0.02s | Loss {loss:.4f} | {more}Grad. Norm 0.1000 | LR 3.00e-06 | Throughput 12345 tokens/s"
        " | MFU 30.1% | Peak Mem. 60.1 GiB",
    )
    folders.row(step, perf__throughput=12345.0, perf__mfu=30.1)
    folders.row(step, optim__lr=3e-6)
    folders.row(step, loss__mean=loss)
    folders.row(step, time__step=0.02, time__save_ckpt=0.0, time__forward_backward=0.01)


def publish(folders: Folders, step: int) -> None:
    folder = folders.broadcasts / f"step_{step}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "STABLE").touch()


def save_if_due(config: dict[str, Any], folders: Folders, step: int, rank: int) -> None:
    interval = config["interval"]
    if interval and step % interval == 0 and rank == 0:
        report("INFO", f"Saving checkpoint at step {step}")
        save(config, folders, step)


def save(config: dict[str, Any], folders: Folders, step: int) -> None:
    folder = folders.checkpoints / f"step_{step}" / "trainer"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__0_0.distcp").write_bytes(bytes(4096))
    if is_due("dies_in_save", step):
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / ".metadata").write_bytes(metadata({"__0_0.distcp": 4096}))
    if config["keep_last"]:
        steps = sorted(int(path.name.split("_")[-1]) for path in folders.checkpoints.glob("step_*"))
        for old in steps[: -config["keep_last"]]:
            subprocess.run(["rm", "-rf", str(folders.checkpoints / f"step_{old}")], check=True)


class MetadataIndex:
    """As torch.distributed.checkpoint pickles it: the name of what is stored, and which piece of it."""

    def __init__(self, fqn: str) -> None:
        self.fqn = fqn
        self.offset = None
        self.index = None


class StorageInfo:
    """As torch pickles where a piece stands."""

    def __init__(self, relative_path: str, length: int) -> None:
        self.relative_path = relative_path
        self.offset = 0
        self.length = length


class Metadata:
    """As torch pickles what a checkpoint holds, the shapes left out."""

    def __init__(self, files: dict[str, int]) -> None:
        self.state_dict_metadata: dict[str, object] = {}
        self.storage_data = {MetadataIndex(f"app.{name}"): StorageInfo(name, size) for name, size in files.items()}


def metadata(files: dict[str, int]) -> bytes:
    """A `.metadata` that names files, each with a tensor that fills it."""
    return pickle.dumps(Metadata(files))


class OutOfMemoryError(RuntimeError):
    """As torch raises it: a traceback names it torch.OutOfMemoryError."""

    __module__ = "torch"


def misbehave(step: int, rank: int) -> None:
    if rank != int(OPTIONS.get("rank", 0)):
        return
    if is_due("trainer_raises", step):
        raise RuntimeError(f"boom at step {step}")
    if is_due("out_of_memory", step):
        raise OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
            "79.11 GiB of which 1.20 GiB is free."
        )
    if is_due("disk_full", step):
        raise OSError(28, "No space left on device", "checkpoints/step_6/trainer/__0_0.distcp")
    if is_due("trainer_killed", step):
        os.kill(os.getpid(), signal.SIGKILL)
    if is_due("hangs", step):
        time.sleep(FOREVER_S)


def main() -> None:
    role, *arguments = sys.argv[1:]
    if role in ("rl", "sft"):
        count = Path(OPTIONS.get("count", os.devnull))
        with open(count, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {os.environ.get('PRL_RUN_ID', '')}\n")
        starts = len(count.read_text(encoding="utf-8").splitlines()) if count.is_file() else 1
        os.environ["STANDIN_START"] = str(starts)
        Launcher(role, arguments).main()
    elif role == "torchrun":
        torchrun(arguments)
    else:
        parts = {"inference": inference, "env-server": env_server, "orchestrator": orchestrator, "trainer": trainer}
        parts[role](read_config(arguments))


if __name__ == "__main__":
    main()
