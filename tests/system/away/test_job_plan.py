"""Which machines are chosen, what is refused, and that no secret leaves."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import tomli
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train import __version__
from prime_train.away.sky import commands, task
from prime_train.away.sky.carried import find_carried
from prime_train.away.sky.commands import list_clouds
from prime_train.away.sky.job_plan import JobRequest, PlannedConfig, check_portable, plan_job
from prime_train.away.sky.refusals import LocalPath, find_paths, usable_clouds
from prime_train.away.sky.task import BUCKET_FOLDER, SkyJobPlan, write_script
from prime_train.core.errors import UserError
from prime_train.estimate.cost.run_cost import shipped_rates
from prime_train.registry.gpus import presets
from prime_train.spec.answers import machine_gpus
from tests.unit.away.plans import NEED_A_FOLDER, PRICES, SALT, plan, read_preset, read_text
from tests.unit.away.task_checks import check_task

QUICKSTART = presets()["quickstart"].read_text(encoding="utf-8")


def refused(text: str, cloud: str = "auto", **environment: str) -> UserError:
    run, config = read_text(text, "run.toml")

    def plan_all() -> None:
        check_portable(run, config, environment)
        plan_job(run, config, JobRequest(cloud, None, None, SALT), PRICES, shipped_rates())

    with pytest.raises(UserError) as caught:
        plan_all()
    return caught.value


def test_machines_with_prices_are_ordered_by_the_cost_of_the_whole_run() -> None:
    job = plan("h100-80gb", "nebius")
    costs = [candidate.run_usd for candidate in job.choice.candidates]
    priced = [usd for usd in costs if usd is not None]
    assert len(priced) > 1
    assert costs == [*sorted(priced), *[None] * (len(costs) - len(priced))]  # machines without a price come last
    assert "ordered" in task.document(job)["resources"]


def test_without_a_price_sky_takes_the_cheapest() -> None:
    assert "any_of" in task.document(plan("h100-80gb", "azure"))["resources"]


def test_the_cap_is_the_price_on_demand() -> None:
    caps = {item.gpu: item.cap_usd_per_hour for item in plan("h100-80gb", "nebius").choice.candidates}
    assert caps["h100-80gb"] == 8 * 2.95


def test_a_limit_of_the_user_leaves_dearer_machines_out() -> None:
    run, config = read_preset("h100-80gb")
    job = plan_job(run, config, JobRequest("nebius", None, 11.0, SALT), PRICES, shipped_rates())
    assert {(item.gpu, item.cap_usd_per_hour) for item in job.choice.candidates} >= {("h100-80gb", 11.0)}
    assert "h200" not in {item.gpu for item in job.choice.candidates}


def test_every_candidate_has_the_gpus_of_the_config() -> None:
    for preset in ("h100-80gb", "l40s", "rl-h100-80gb"):
        run, _ = read_preset(preset)
        assert {item.gpus for item in plan(preset, "auto").choice.candidates} == {machine_gpus(run)}


def test_the_disk_holds_the_checkpoints() -> None:
    run, config = read_preset("rl-vllm-4-plus-4")
    assert config.shape is not None
    one_gb = 12 * config.shape.parameters / 1e9
    assert plan("rl-vllm-4-plus-4", "aws").disk_gb > (run.checkpoint.keep_last + 1) * one_gb + 2 * 2 * 8


def test_several_machines_are_refused_with_the_reason() -> None:
    text = QUICKSTART.replace("micro_batch = 8", "micro_batch = 1") + "\n[parallel]\nprocesses = 16\ndp_shard = 16\n"
    error = refused(text)
    assert "16 GPUs" in error.what
    assert "one machine" in error.why
    assert "--gpus-max 8" in error.fix


TWO_MACHINES = (
    QUICKSTART.replace("micro_batch = 8", "micro_batch = 1")
    + "\n[parallel]\nprocesses = 16\ndp_shard = 8\nmachines = 2\n"
)


def test_two_machines_share_the_processes() -> None:
    job = plan_text(TWO_MACHINES, "aws")
    document = task.document(job)
    assert document["num_nodes"] == 2
    assert {candidate.gpus for candidate in job.choice.candidates} == {8}
    assert not check_task(document)


def test_only_machine_0_writes_to_the_bucket(tmp_path: Path) -> None:
    """The part of the script before the run, on both machines."""
    script = plan_text(TWO_MACHINES, "aws").script.run
    before = script[: script.index("cat > ")].replace("$HOME/prime-train-env/bin:", "")
    for rank in ("0", "1"):
        home = tmp_path / rank
        home.mkdir()
        environment = {"PATH": os.defpath, "HOME": str(home), "SKYPILOT_NODE_RANK": rank}
        subprocess.run(
            ["bash", "-c", before], env={**environment, "PRIME_TRAIN_BUCKET": str(tmp_path / "b")}, check=True
        )
        (tmp_path / "b").mkdir(exist_ok=True)
    assert (tmp_path / "0" / "prime-train-job" / "runs").is_symlink()
    assert not (tmp_path / "1" / "prime-train-job" / "runs").exists()


def test_the_price_is_that_of_all_machines() -> None:
    one = plan_text(TWO_MACHINES.replace("16", "8").replace("machines = 2", "machines = 1"), "nebius")
    two = plan_text(TWO_MACHINES, "nebius", max_usd_per_hour=30.0)
    assert {candidate.cap_usd_per_hour for candidate in two.choice.candidates} == {15.0}
    assert one.nodes == 1
    less = plan_text(TWO_MACHINES, "nebius", max_usd_per_hour=19.0)  # one machine of the cheapest H100 costs 8 x 1.25
    assert "above 19 USD an hour" in dict(less.choice.left_out)


def test_a_cloud_that_cannot_join_machines_is_refused() -> None:
    error = refused(TWO_MACHINES, "primeintellect")
    assert "cannot join 2 machines" in error.what
    assert "aws" in error.fix


def plan_text(text: str, cloud: str, max_usd_per_hour: float | None = None) -> SkyJobPlan:
    run, config = read_text(text, "run.toml")
    return plan_job(run, config, JobRequest(cloud, None, max_usd_per_hour, SALT), PRICES, shipped_rates())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (('kind = "python-stdlib"', 'kind = "files"\npath = "text/*.txt"'), "data.sources.path"),
        (("vocab_size = 4096", 'path = "/srv/tokenizer"'), "tokenizer.path"),
        (("vocab_size = 4096", 'path = "my-tokenizer"'), "tokenizer.path"),
        (("vocab_size = 4096", 'path = "~/tokenizer"'), "tokenizer.path"),
    ],
)
def test_a_path_of_this_machine_is_refused(change: tuple[str, str], named: str) -> None:
    _, config = read_preset("quickstart")
    text = QUICKSTART.replace(*change)
    changed = read_text(text, "run.toml")[0]
    with pytest.raises(UserError) as caught:
        check_portable(changed, PlannedConfig(text, tomli.loads(text), "run.toml", config.shape), {})
    assert named in caught.value.where
    assert "another machine" in caught.value.why


def test_a_bucket_with_an_illegal_name_is_refused() -> None:
    run, config = read_preset("quickstart")
    with pytest.raises(UserError, match="--bucket"):
        plan_job(run, config, JobRequest("aws", "My_Bucket", None, SALT), PRICES, shipped_rates())


def test_an_unknown_cloud_names_the_nearest() -> None:
    assert refused(QUICKSTART, "nebus").fix == "--cloud nebius"


def test_a_backup_of_the_config_opens_the_clouds_that_mount_nothing() -> None:
    run, config = read_preset("quickstart")
    with pytest.raises(UserError, match="mounts no bucket on Vast"):
        usable_clouds(run, list_clouds("vast"), "vast", has_backup=False)
    assert [cloud.id for cloud in usable_clouds(run, list_clouds("vast"), "vast", has_backup=True)] == ["vast"]
    script = write_script(run, config.text, (), mounts=False).run
    assert "PRIME_TRAIN_BUCKET" not in script


def test_a_job_with_a_backup_installs_it_and_passes_its_credentials_by_name() -> None:
    job = plan_with_backup("s3", "vast")
    assert job.bucket is None
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= set(job.secrets)
    assert f"'prime-train[train,backup]=={__version__}'" in job.script.setup
    assert {candidate.cloud for candidate in job.choice.candidates} == {"vast"}


@pytest.mark.parametrize("preset", ["quickstart", "rl-h100-80gb"])
def test_a_job_installs_prime_train_from_the_address_that_is_given(preset: str) -> None:
    run, config = read_preset(preset)
    address = f"git+https://example.org/team/prime-train.git@{'0a' * 20}"
    request = JobRequest("aws", None, None, SALT, package_url=address)
    job = plan_job(run, config, request, PRICES, shipped_rates())
    assert f" @ {address}'" in job.script.setup
    assert "prime-train==" not in job.script.setup


@pytest.mark.parametrize(
    "address",
    [
        "/home/me/prime_train-1-py3-none-any.whl",
        "file:///home/me/clone",
        "git+ssh://git@example.org/it",
        "https://me:word@example.org/it.whl",
        "https://example.org/it.whl'; curl example.org",
        "prime-train==2",
    ],
)
def test_an_address_that_the_machines_cannot_use_is_refused(address: str) -> None:
    run, config = read_preset("quickstart")
    with pytest.raises(UserError, match="--package") as caught:
        plan_job(run, config, JobRequest("aws", None, None, SALT, package_url=address), PRICES, shipped_rates())
    assert "word" not in str(caught.value)


def test_googles_storage_is_reached_from_google_cloud_alone() -> None:
    job = plan_with_backup("gcs", "auto")
    assert {candidate.cloud for candidate in job.choice.candidates} == {"gcp"}
    with pytest.raises(UserError, match="Google's storage") as caught:
        plan_with_backup("gcs", "vast")
    assert "--cloud gcp" in caught.value.fix


def plan_with_backup(provider: str, cloud: str) -> SkyJobPlan:
    backup = f'\n[prime_train.backup]\nprovider = "{provider}"\nbucket = "mine"\n'
    run, config = read_text(presets()["quickstart"].read_text(encoding="utf-8") + backup, "quickstart.toml")
    return plan_job(run, config, JobRequest(cloud, None, None, SALT), PRICES, shipped_rates())


def test_environments_that_start_containers_need_a_machine_that_can() -> None:
    text = presets()["rl-h100-80gb"].read_text(encoding="utf-8").replace('type = "subprocess"', 'type = "docker"')
    run, _ = read_text(text, "rl.toml")
    kept = {cloud.id for cloud in usable_clouds(run, list_clouds("auto"), "auto", has_backup=True)}
    assert {"aws", "gcp", "azure", "nebius"} <= kept
    assert not {"vast", "runpod", "primeintellect"} & kept
    with pytest.raises(UserError, match="start containers"):
        usable_clouds(run, list_clouds("runpod"), "runpod", has_backup=True)


# --- scripts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", sorted(set(presets()) - {"serve"} - NEED_A_FOLDER))
def test_the_scripts_are_bash(preset: str) -> None:
    script = plan(preset, "aws").script
    for text in script:
        subprocess.run(["bash", "-n"], input=text, text=True, check=True, capture_output=True)


def test_a_missing_secret_ends_the_setup_before_it_installs_anything() -> None:
    run, config = read_text(QUICKSTART + '\n[prime_train.wandb]\nproject = "p"\n', "run.toml")
    job = plan_job(run, config, JobRequest("aws", None, None, SALT), PRICES, shipped_rates())
    done = subprocess.run(
        ["/bin/bash", "-c", job.script.setup], env={"PATH": ""}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "WANDB_API_KEY is not set" in done.stderr) == (4, True)


_BEGINS = "python -P -m prime_train.away.sky.condemned "  # what follows needs an installed prime-train


@pytest.mark.parametrize(("code", "ends_with"), [(0, 0), (33, 33), (1, 0)])
def test_only_a_refusal_of_the_machine_ends_the_job_before_the_run(tmp_path: Path, code: int, ends_with: int) -> None:
    line = next(one for one in plan("quickstart", "aws").script.run.splitlines() if one.startswith(_BEGINS))
    (tmp_path / "python").write_text(f"#!/bin/sh\nexit {code}\n")
    (tmp_path / "python").chmod(0o755)
    own = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PRIME_TRAIN_JOB": "j"}
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", f"{line}\nexit 0"], env=own, check=False)
    assert done.returncode == ends_with


def test_the_config_arrives_as_it_is(tmp_path: Path) -> None:
    hostile = "# $(touch pwned) `touch pwned` $HOME \\ ' \" PRIME_TRAIN_CONFIG\n"
    text = QUICKSTART + hostile + "#\nx = '''\nPRIME_TRAIN_CONFIG\n'''\n"
    run, config = read_text(QUICKSTART, "run.toml")
    job = plan_job(run, config._replace(text=text), JobRequest("aws", None, None, SALT), PRICES, shipped_rates())
    script = str(yaml.safe_load(task.to_yaml(task.document(job)))["run"])
    before = script.partition(_BEGINS)[0]
    variables = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PRIME_TRAIN_BUCKET": str(tmp_path / "bucket")}
    subprocess.run(["bash", "-c", before], env=variables, check=True, cwd=tmp_path)
    assert (tmp_path / "prime-train-job/run.toml").read_text(encoding="utf-8") == text
    assert not list(tmp_path.rglob("pwned"))


def test_marks_of_machines_that_are_gone_are_deleted(tmp_path: Path) -> None:
    checkpoint = tmp_path / "bucket/runs/quickstart/checkpoints/step_40"
    checkpoint.mkdir(parents=True)
    (checkpoint / "IN_USE.12").write_text("12:3456 machine-1", encoding="utf-8")
    (checkpoint / "COMPLETE.json").write_text("{}", encoding="utf-8")
    before = plan("quickstart", "aws").script.run.partition(_BEGINS)[0]
    variables = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PRIME_TRAIN_BUCKET": str(tmp_path / "bucket")}
    subprocess.run(["bash", "-c", before], env=variables, check=True, cwd=tmp_path)
    assert [path.name for path in checkpoint.iterdir()] == ["COMPLETE.json"]


# --- secrets ---------------------------------------------------------------------------------------

# Hypothesis draws words of the code, too, which a job may contain: the ends of a secret differ from them.
_SECRET = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40).map(
    lambda text: f"^{text}^"
)
_NAMES = st.sampled_from(["WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD", "SLACK_WEBHOOK_URL"])


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(_NAMES, _SECRET, min_size=1))
def test_secrets_of_the_environment_are_in_no_file_and_no_argument(environment: dict[str, str]) -> None:
    run, config = read_text(QUICKSTART + '\n[prime_train.wandb]\nproject = "p"\n', "run.toml")
    check_portable(run, config, environment)
    request = JobRequest("auto", None, None, SALT, tokens=tuple(environment.keys() & {"HF_TOKEN"}))
    job = plan_job(run, config, request, PRICES, shipped_rates())
    text = task.to_yaml(task.document(job))
    words = commands.launch_arguments(job.name, Path("job.yaml"), job.secrets)
    baseline = task.to_yaml(task.document(plan_job(run, config, request, PRICES, shipped_rates())))
    assert text == baseline
    for value in environment.values():
        assert value not in text
        assert value not in shlex.join(words)


@settings(max_examples=60, deadline=None)
@given(_NAMES, _SECRET.filter(lambda text: '"' not in text and "\\" not in text))
def test_a_secret_in_the_config_is_refused_and_not_repeated(name: str, value: str) -> None:
    text = QUICKSTART + f"\n# {value}\n"
    error = refused(text, **{name: value})
    assert error.what == "it holds a secret"
    assert value not in str(error)


@pytest.mark.parametrize("token", ["ghp_" + "a1" * 18, "hf_" + "Ab3" * 8, "AKIA" + "ABCD" * 4])
def test_a_token_that_is_not_in_the_environment_is_refused_too(token: str) -> None:
    error = refused(QUICKSTART + f"\n# {token}\n")
    assert error.what == "it holds a secret"
    assert token not in str(error)


def test_data_of_this_machine_is_copied_where_it_exists(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("words")
    text = QUICKSTART.replace('kind = "python-stdlib"', 'kind = "files"\npath = "text/*.txt"')
    run, config = read_text(text, "run.toml")
    carried = find_carried(find_paths(run, config.values), tmp_path)
    config = config._replace(carried=carried)
    check_portable(run, config, {})
    mounts = task.document(plan_job(run, config, JobRequest("aws", None, None, SALT), PRICES, shipped_rates()))
    assert mounts["file_mounts"]["~/prime-train-job/text"] == str(tmp_path / "text")
    assert BUCKET_FOLDER in mounts["file_mounts"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.sources.path", "*.txt"),
        ("data.sources.path", "gone/*.txt"),
        ("data.sources.path", "../text"),
        ("data.sources.path", ".hidden/text"),
        ("data.sources.path", "/"),
        ("data.sources.path", "~"),
        ("model.path", "file:///srv"),
        ("run.dir", "text"),
        ("output_dir", "text"),
    ],
)
def test_what_is_not_there_or_gives_away_too_much_is_not_copied(tmp_path: Path, key: str, value: str) -> None:
    for name in ("text", ".hidden/text"):
        (tmp_path / name).mkdir(parents=True)
    assert find_carried([LocalPath(key, value)], tmp_path) == ()


def test_only_what_a_path_names_is_copied(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    (absolute,) = find_carried([LocalPath("tokenizer.path", str(tmp_path / "tokenizer"))], Path("/"))
    assert (absolute.source, absolute.target) == (str(tmp_path / "tokenizer"), str(tmp_path / "tokenizer"))
    (relative,) = find_carried([LocalPath("tokenizer.path", "./tokenizer")], tmp_path)
    assert (relative.source, relative.target) == (str(tmp_path / "tokenizer"), "~/prime-train-job/tokenizer")


WORDLE = """max_steps = 200
seq_len = 8192

[prime_train]
prime_rl = "2026-08"

[deployment]
num_train_gpus = 2
num_infer_gpus = 6

[ckpt]

[model]
name = "Qwen/Qwen3-1.7B"

[orchestrator]
batch_size = 512
group_size = 16

[trainer]

[inference]
"""


def test_a_prime_rl_file_without_an_interval_is_a_job() -> None:
    """prime-train sets ckpt.interval in its copy, and prime-rl has no key checkpoint.interval_steps."""
    run, config = read_text(WORDLE, "rl.toml")
    assert run.checkpoint.interval_steps is None
    check_portable(run, config, {})
    job = plan_job(run, config, JobRequest("auto", None, None, SALT), PRICES, shipped_rates())
    assert job.choice.candidates
    plain, config = read_text(QUICKSTART, "run.toml")
    with pytest.raises(UserError, match="saves no checkpoint") as refusal:
        plan_job(
            replace(plain, checkpoint=replace(plain.checkpoint, interval_steps=None)),
            config,
            JobRequest("auto", None, None, SALT),
            PRICES,
            shipped_rates(),
        )
    assert refusal.value.fix == "set checkpoint.interval_steps"


def test_offers_with_a_price_stand_before_those_without_one() -> None:
    choice = plan("h100-80gb", "auto").choice
    priced = [candidate.run_usd is not None for candidate in choice.candidates]
    assert set(priced) == {True, False}
    assert priced == sorted(priced, reverse=True)
    assert "ordered" in task.document(plan("h100-80gb", "auto"))["resources"]
