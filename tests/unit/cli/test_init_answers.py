"""What the flags of `init` stand for: GPUs, environments, trainers."""

from __future__ import annotations

import pytest

from prime_train.choose.wishes import ChosenData, GpuPlace, Task
from prime_train.choose.workload import find_workload
from prime_train.cli.init.answers import read_environment, read_flags
from prime_train.cli.init.flags import Flags
from prime_train.cli.init.place import parse_place
from prime_train.cli.init.trainers import choose_trainers, refuse_data
from prime_train.config.prime_rl.schema import newest
from prime_train.core.errors import UserError

_FLAGS = Flags(task="pretrain", model="Qwen/Qwen3-0.6B", gpus="1xrtx4090", data="python-stdlib", offline=True)


@pytest.mark.parametrize(
    ("text", "gpus", "gpu", "machines"),
    [
        ("1xrtx4090", 1, "rtx-4090", 1),
        ("rtx-4090", 1, "rtx-4090", 1),
        ("8xh100-80gb", 8, "h100-80gb", 1),
        ("8xh100", 8, "h100-80gb", 1),
        ("2x8xh100", 16, "h100-80gb", 2),
        ("4xL40S", 4, "l40s", 1),
    ],
)
def test_gpus_have_short_names(text: str, gpus: int, gpu: str, machines: int) -> None:
    hardware, found = parse_place(text)
    assert (hardware.gpus, hardware.id, found) == (gpus, gpu, machines)


@pytest.mark.parametrize("text", ["", "8x", "0xh100-80gb", "h100x8", "1xh1000", "2x0xh100", "99999xh100"])
def test_other_texts_name_no_gpus(text: str) -> None:
    with pytest.raises(UserError):
        parse_place(text)


def test_tools_decide_how_many_rollouts_run_at_once() -> None:
    alone = read_environment(Flags(env="gsm8k"))
    remote = read_environment(Flags(env="gsm8k", turns="multi", tools="sandbox"))
    assert (alone.rollouts, alone.concurrency, alone.max_turns) == (128, 128, 1)
    assert (remote.rollouts, remote.concurrency) == (64, 32)
    assert remote.rollout_limit_s > alone.rollout_limit_s
    assert remote.ctx_tokens > alone.ctx_tokens


def test_an_environment_that_is_not_known_needs_its_turns() -> None:
    assert find_workload("owner/quite-unheard-of") is None
    with pytest.raises(UserError, match="not known"):
        read_environment(Flags(env="owner/quite-unheard-of"))
    described = read_environment(Flags(env="owner/quite-unheard-of", turns="single"))
    assert (described.kind, described.id, described.prompt_tokens) == ("verifiers", "owner/quite-unheard-of", None)


def _place(gpus: str) -> GpuPlace:
    return GpuPlace(*parse_place(gpus))


def test_the_bundled_trainer_comes_first() -> None:
    assert choose_trainers(Flags(), "sft", _place("1xh100"))[0] == ("bundled",)
    assert choose_trainers(Flags(), "rl", _place("1xh100"))[0] == ("bundled", "2026-01")
    assert choose_trainers(Flags(), "rl", _place("8xh100"))[0] == ("bundled", newest())
    assert choose_trainers(Flags(trainer="2026-05"), "rl", _place("8xh100"))[0] == ("2026-05",)
    assert choose_trainers(Flags(trainer="prime-rl"), "sft", _place("8xh100"))[0] == (newest(),)
    with pytest.raises(UserError, match="prime-rl"):
        choose_trainers(Flags(trainer="prime-rl"), "pretrain", _place("8xh100"))


@pytest.mark.parametrize(
    ("trainer", "task", "gpus", "fix"),
    [
        ("bundled", "rl", "2x8xh100", "or --gpus 8xh100-80gb"),
        ("2026-01", "rl", "2x8xh100", "--trainer 2026-08"),
        ("2026-01", "sft", "8xh100", "or --gpus 1xh100-80gb"),
    ],
)
def test_what_a_trainer_cannot_use_is_refused(trainer: str, task: Task, gpus: str, fix: str) -> None:
    with pytest.raises(UserError) as refused:
        choose_trainers(Flags(trainer=trainer), task, _place(gpus))
    assert fix in refused.value.fix


@pytest.mark.parametrize(
    ("data", "fix"),
    [
        (ChosenData("demonstrations"), "--data with a folder"),
        (ChosenData("files", "data/chats.jsonl"), "--data data/"),
        (ChosenData("hf-dataset", "x/y", field="talk"), "rename that column"),
    ],
)
def test_data_that_prime_rl_cannot_read_is_refused(data: ChosenData, fix: str) -> None:
    with pytest.raises(UserError) as refused:
        refuse_data(data, "2026-08")
    assert fix in refused.value.fix
    refuse_data(ChosenData("hf-dataset", "x/y"), "2026-08")


def test_two_machines_share_a_pretraining_and_rollouts_with_prime_rl_alone() -> None:
    wishes = read_flags(_FLAGS._replace(gpus="2x8xh100")).wishes
    assert (wishes.place.hardware.gpus, wishes.place.machines) == (16, 2)
    wishes = read_flags(_FLAGS._replace(task="rl", env="reverse-text", gpus="2x8xh100")).wishes
    assert wishes.trainers == (newest(),)


def test_the_cheapest_gpus_are_those_of_an_offer() -> None:
    found = read_flags(_FLAGS._replace(gpus="cheapest"))
    assert any(note.startswith("cheapest: ") for note in found.notes)
    assert found.wishes.place.hardware.usable_bytes > 2**33
