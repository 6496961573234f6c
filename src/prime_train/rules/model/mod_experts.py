"""Experts and model folders that do not fit the other settings. Pure: the facts are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prime_train.core.findings import Severity
from prime_train.rules.rule import Problems, facts_rule, known, rule, suggest, unused
from prime_train.spec import Model, RunSpec
from prime_train.spec.decoder_size import Architecture, architecture_from_fields
from prime_train.spec.hf_config import find_conflicts, find_fp8_size_conflict

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_OF_EXPERTS = ("experts_per_token", "expert_mlp_size", "shared_experts", "router", "balance_rate", "router_z_loss")


@rule("MOD014", Severity.ERROR)
def experts_do_not_fit(run: RunSpec) -> Problems:
    """The sizes of experts must fit each other, the router and the distribution over processes.

    the trainer refuses them

    A token visits at most all experts. FSDP2 divides the experts by parallel.dp_shard. The inner width of an expert and
    the width of the model are multiples of 8.

    Source: spec/hf_config.py; torch.nn.functional.grouped_mm, torch 2.13 (rows aligned to 16 bytes).

    Bad:
        [model]
        experts = 4
        experts_per_token = 8
    Bad:
        [model]
        experts = 8
        expert_mlp_size = 100
    Bad:
        [model]
        experts = 8
        router = "softmax"
    Bad:
        [model]
        experts = 6
        [parallel]
        processes = 4
        dp_shard = 4
        [batch]
        micro_batch = 1
        global_batch = 16
    Good:
        [model]
        experts = 8
        experts_per_token = 2
        expert_mlp_size = 128
    """
    if run.model.path is None and run.model.experts:
        yield from _list_conflicts(run, architecture_from_fields(run.model, 1))


@facts_rule("MOD015", Severity.ERROR, needs=("model_folder",))
def folder_does_not_fit(run: RunSpec, facts: Facts) -> Problems:
    """The settings must fit the model of model.path: its context, its experts, and with fp8 its sizes.

    the trainer refuses them

    GPT-2 has no positions beyond its table, and Mistral with a sliding window attends to no more tokens than that.

    Source: spec/hf_config.py; GPT-2 (Radford et al., 2019), s. 2.3; Mistral 7B, arXiv 2310.06825, s. 2.

    Bad:
        [model]
        path = "models/gpt2"
        init = "random"
        [data]
        ctx_tokens = 2048
        [facts.model_folder]
        path = "models/gpt2"
        model_type = "gpt2"
        [facts.model_folder.architecture]
        learned_positions = 1024
    Good:
        [model]
        path = "models/gpt2"
        init = "random"
        [data]
        ctx_tokens = 1024
        [facts.model_folder]
        path = "models/gpt2"
        model_type = "gpt2"
        [facts.model_folder.architecture]
        learned_positions = 1024
    """
    folder = known(facts.model_folder)
    if folder is not None and folder.architecture is not None:
        yield from _list_conflicts(run, folder.architecture)
        for conflict in find_fp8_size_conflict(run, folder.architecture):
            yield suggest(conflict.at, conflict.what, conflict.value, why=conflict.why)


def _list_conflicts(run: RunSpec, sizes: Architecture) -> Problems:
    for conflict in find_conflicts(run, sizes):
        yield suggest(conflict.at, conflict.what, conflict.value, why=conflict.why)


@rule("MOD016", Severity.WARNING)
def expert_settings_without_effect(run: RunSpec) -> Problems:
    """Settings of experts need experts, and the balancing rate needs the sigmoid router.

    the run trains another model than the file describes

    Source: trainer/model/experts.py (only a sigmoid router has balancing biases).

    Bad:
        [model]
        shared_experts = 1
    Bad:
        [model]
        experts = 8
        router = "softmax"
        qk_norm = true
        balance_rate = 0.001
    Good:
        [model]
        experts = 8
        shared_experts = 1
        balance_rate = 0.001
    """
    model = run.model
    if model.path is not None:
        return  # MOD004 reports the sizes
    if not model.experts:
        usual = Model()
        for name in _OF_EXPERTS:
            value = getattr(model, name)
            if value != getattr(usual, name):
                yield unused(f"model.{name}", value, "`model.experts` is 0")
    elif model.router == "softmax" and model.balance_rate is not None:
        yield unused("model.balance_rate", f"{model.balance_rate:g}", '`model.router` is "softmax"')
