"""Rules judge any RunSpec that a file may describe: prime-rl sets few bounds, so numbers may be anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_type_hints

from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.config.parsed_config import Reading
from prime_train.core.findings import Problem
from prime_train.facts.machine import Gpu, VisibleGpus
from prime_train.rules.families import load_all
from prime_train.spec import (
    ENDLESS_STEPS,
    Batch,
    Checkpoint,
    Data,
    Model,
    Optim,
    Run,
    RunSpec,
    Schedule,
    Source,
    prime_rl_parts,
)
from prime_train.spec.answers import launched_server
from prime_train.spec.rl import Adapter, Rl, TaskSource
from prime_train.spec.server import Server, inference_of
from prime_train.toml.document import Document
from tests.unit.rules.examples import GOOD_MACHINE

RULES = load_all()

_NUMBERS = st.integers(-2, 9) | st.integers(-(2**63), 2**63) | st.sampled_from((16, 128, 4096, 8000, 65535))
_FLOATS = st.sampled_from((0.0, 0.9, 1.0, 90.0, -1.0, 1e-6, float("inf"), float("nan")))
_TEXTS = st.sampled_from(
    (
        "",
        "Qwen/Qwen3-1.7B",
        "Qwen/Qwen3-30B-A3B",
        "nccl",
        "zmq",
        "grpo",
        "single_node",
        "multi_node",
        "adamw",
        "float32",
        "2026-01",
        "2026-08",
        "http://localhost:8000/v1",
        "/tmp/x",
        "~/x",
        "bfloat16",
        "agg",
        "{{ messages }}",
    )
)


def _of(hint: Any) -> st.SearchStrategy[Any]:
    written = str(hint)
    if "EnvironmentSource, ..." in written:
        return st.none() | st.lists(_part(prime_rl_parts.EnvironmentSource), max_size=3).map(tuple)
    if "Mapping" in written:
        return st.none() | st.dictionaries(st.sampled_from(("top_p", "n", "http_proxy", "num_examples")), _TEXTS)
    if "tuple[int" in written:
        return st.none() | st.lists(_NUMBERS, max_size=3).map(tuple)
    if "tuple[float" in written:
        return st.none() | st.lists(_FLOATS, max_size=3).map(tuple)
    if "tuple[str" in written:
        return st.none() | st.lists(_TEXTS, max_size=3).map(tuple)
    if "bool" in written:
        return st.none() | st.booleans()
    if "float" in written:
        return st.none() | _FLOATS
    return st.none() | (_NUMBERS if "int" in written else _TEXTS)


def _part(cls: Any) -> st.SearchStrategy[Any]:
    return st.builds(cls, **{name: _of(hint) for name, hint in get_type_hints(cls).items()})


_RUNS = st.builds(
    RunSpec,
    run=st.builds(Run, name=_TEXTS, max_steps=st.integers(1, 1000) | st.just(ENDLESS_STEPS)),
    data=st.just(Data(sources=())),
    optim=st.builds(Optim, lr=_FLOATS, weight_decay=_FLOATS, clip_norm=st.none() | _FLOATS),
    schedule=st.builds(Schedule, warmup_steps=_NUMBERS, decay_steps=st.none() | _NUMBERS),
    checkpoint=st.builds(Checkpoint, interval_steps=st.none() | st.integers(1, 2000)),
    format=st.just("prime-rl"),
    prime_rl=st.builds(
        prime_rl_parts.PrimeRl,
        launch=_part(prime_rl_parts.LaunchPart),
        resume=st.none() | _part(prime_rl_parts.Resume),
        saving=st.none() | _part(prime_rl_parts.Saving),
        deployment=st.none() | _part(prime_rl_parts.Deployment),
        trainer=st.none() | _part(prime_rl_parts.Trainer),
        finetune=st.none() | _part(prime_rl_parts.Finetune),
        lora=st.none() | _part(prime_rl_parts.Lora),
        rollout=st.none() | _part(prime_rl_parts.RolloutPart),
        environments=st.none() | _part(prime_rl_parts.Environments),
        evaluation=st.none() | _part(prime_rl_parts.OnlineEvaluation),
        weight_broadcast=st.none() | _part(prime_rl_parts.WeightBroadcast),
        transport=st.none() | _part(prime_rl_parts.Transport),
        monitor=st.none() | _part(prime_rl_parts.Monitor),
    ),
    inference=st.none() | _part(prime_rl_parts.Inference),
)
_KINDS = st.sampled_from(("pretrain", "sft", "rl"))
_ARGUMENTS = st.dictionaries(
    st.sampled_from(("max_letters", "min_digits", "max_numbers", "tool_delay_s", "x")), _NUMBERS | _FLOATS | _TEXTS
)
_TASKS = st.builds(
    TaskSource,
    kind=st.sampled_from(("reverse-text", "sort-digits", "calculator", "verifiers")),
    id=st.none() | _TEXTS,
    python=st.none() | _TEXTS,
    arguments=st.none() | _ARGUMENTS,
    max_turns=st.integers(1, 3),
)
_REWARDS = st.builds(
    RunSpec,
    run=st.builds(Run, name=st.just("a"), max_steps=st.integers(1, 1000), kind=_KINDS),
    model=st.builds(Model, path=st.none() | _TEXTS, lora=st.none() | st.builds(Adapter, rank=st.integers(1, 64))),
    data=st.builds(
        Data,
        sources=st.lists(st.builds(Source, kind=st.sampled_from(("demonstrations", "python-stdlib"))), max_size=2).map(
            tuple
        ),
        ctx_tokens=st.integers(8, 4096),
    ),
    batch=st.builds(Batch, micro_batch=st.integers(1, 9), global_batch=st.none() | st.integers(1, 100)),
    tasks=st.lists(_TASKS, max_size=2).map(tuple),
    rl=st.none()
    | st.builds(
        Rl,
        group_size=st.integers(1, 33),
        warmup_steps=st.integers(0, 1500),
        kl_coef=st.floats(0, 1e9),
        answer_tokens=st.integers(1, 5000),
        concurrency=st.integers(1, 10_000),
        max_behind_steps=st.integers(0, 9),
    ),
    server=st.none()
    | st.builds(
        Server,
        engine=st.sampled_from(("local", "vllm")),
        model=st.sampled_from(("", "Qwen/Qwen3-0.6B")),
        ctx_tokens=st.none() | st.integers(1, 9999),
        gpu_memory_fraction=st.none() | st.floats(0.01, 1),
    ),
)
_A10G = VisibleGpus((Gpu("NVIDIA A10G", 25769803776, (8, 6)),))


@given(_RUNS)
@settings(max_examples=150, deadline=None)
def test_no_rule_fails_on_any_run(run: RunSpec) -> None:
    reading = Reading(Document.parse("", "rl.toml"), "prime-rl", "", "rl", run, (), {}, all_fields=False)
    for rule in RULES.values():
        if rule.reads_run and not rule.needs:
            for found in rule.check(reading, None):
                assert isinstance(found, Problem)
                assert found.what
                assert found.fix or found.patch, rule.code


@given(_RUNS)
@settings(max_examples=50, deadline=None)
def test_no_memory_rule_fails_on_any_run(run: RunSpec) -> None:
    reading = Reading(Document.parse("", "rl.toml"), "prime-rl", "", "rl", run, (), {}, all_fields=False)
    facts = replace(GOOD_MACHINE, gpus=_A10G)
    for code in ("MEM004", "MEM005"):
        for found in RULES[code].check(reading, facts):
            assert isinstance(found, Problem)


@given(_REWARDS)
@settings(max_examples=150, deadline=None)
def test_no_rule_fails_on_any_run_of_tasks(run: RunSpec) -> None:
    server = launched_server(run)
    if server is not None:
        run = replace(run, inference=inference_of(server))
    reading = Reading(Document.parse("", "run.toml"), "prime-train", "", "run", run, (), {})
    for facts in (GOOD_MACHINE, replace(GOOD_MACHINE, gpus=_A10G)):
        for rule in RULES.values():
            for found in rule.check(reading, facts) if rule.reads_run else ():
                assert isinstance(found, Problem)
                assert found.what
                assert found.fix or found.patch, rule.code
