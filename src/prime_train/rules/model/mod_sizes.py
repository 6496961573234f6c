"""Model folders and sizes that the bundled trainer cannot use. Pure: the facts are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, facts_rule, if_known, known, rule, sharper_rule, suggest, unused
from prime_train.spec import Model, RunSpec
from prime_train.spec.hf_config import MODEL_TYPES

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_NOT_SIZES = (
    *("path", "init", "init_from", "init_step", "init_optimizer", "compile", "recompute", "recompute_every"),
    *("pad_vocab", "lora", "balance_rate", "router_z_loss"),
)


@rule("MOD001", Severity.ERROR)
def heads_not_divisible(run: RunSpec) -> Problems:
    """heads must be a multiple of kv_heads.

    each key and value head serves the same number of query heads

    Source: GQA, arXiv 2305.13245, s. 2.2.

    Bad:
        [model]
        heads = 8
        kv_heads = 3
    Good:
        [model]
        heads = 8
        kv_heads = 2
    """
    model = run.model
    if model.path is not None or model.kv_heads is None or model.heads % model.kv_heads == 0:
        return
    below = max(n for n in range(1, min(model.kv_heads, model.heads) + 1) if model.heads % n == 0)
    yield suggest("model.kv_heads", f"`model.heads` {model.heads} is not a multiple of {model.kv_heads}", below)


@facts_rule("MOD002", Severity.ERROR, needs=("model_folder",))
def model_folder_unusable(run: RunSpec, facts: Facts) -> Problems:
    """model.path must be a Hugging Face folder of a model type that the trainer supports.

    the trainer reads the sizes and the weights from there

    The supported types are llama, qwen3, qwen2, mistral, gpt2, qwen3_moe and glm4_moe.

    Source: spec/hf_families.py (the model types that it lists, and what the trainer computes of them).

    Bad:
        [model]
        path = "models/gone"
        init = "random"
        [facts.model_folder]
        path = "models/gone"
        problem = "there is no such folder"
    Bad:
        [model]
        path = "models/mamba"
        init = "random"
        [facts.model_folder]
        path = "models/mamba"
        model_type = "mamba"
    Good:
        [model]
        path = "models/mine"
        init = "random"
        [facts.model_folder]
        model_type = "llama"
    """
    folder = known(facts.model_folder)
    if folder is None:
        return
    if folder.problem:
        fix = f"download one there (hf download OWNER/NAME --local-dir {folder.path}), or correct the path"
        yield Problem("model.path", f"{folder.path}: {folder.problem}", fix=fix)
    elif folder.model_type not in MODEL_TYPES:
        legal = f"{', '.join(MODEL_TYPES[:-1])} or {MODEL_TYPES[-1]}"
        what = f'{folder.path}: model_type is "{folder.model_type}", not {legal}'
        yield Problem("model.path", what, fix=f"use a model of type {legal}")
    elif folder.architecture is None:
        what, why = folder.refusal
        fix = "download the folder again, or name the folder of another model"
        yield Problem("model.path", f"{folder.path}: {what or 'config.json lacks a size'}", why=why, fix=fix)
    elif run.model.init == "weights" and run.model.init_from is None and not folder.has_weights:
        yield Problem(
            "model.path",
            f"{folder.path}: it has no model.safetensors",
            fix='download the weights too, or `model.init` = "random" to train from scratch',
        )


@rule("MOD003", Severity.ERROR)
def head_dim_wrong(run: RunSpec) -> Problems:
    """A head must have a whole, even width: head_dim, or hidden_size / heads.

    rotary embeddings turn the channels of a head in pairs

    Source: RoFormer, arXiv 2104.09864, s. 3.2.2.

    Bad:
        [model]
        hidden_size = 250
        heads = 4
    Bad:
        [model]
        hidden_size = 252
        heads = 4
    Bad:
        [model]
        head_dim = 63
    Good:
        [model]
        hidden_size = 250
        heads = 4
        head_dim = 64
    """
    model = run.model
    if model.path is not None:
        return
    if model.head_dim is not None:
        if model.head_dim % 2:
            yield suggest("model.head_dim", f"{model.head_dim} is odd", model.head_dim + 1)
        return
    if model.hidden_size % (2 * model.heads) == 0:
        return
    width = model.hidden_size / model.heads
    even = max(1, round(width / 2)) * 2
    yield suggest(
        "model.hidden_size",
        f"{model.hidden_size} / `model.heads` {model.heads} = {width:g}, which is not an even number",
        even * model.heads,
    )


@sharper_rule("MOD004", Severity.WARNING, uses=("model_folder",))
def sizes_beside_a_path(run: RunSpec, facts: Facts | None) -> Problems:
    """Size fields beside model.path have no effect.

    the folder's config.json gives the sizes

    Source: trainer/model/hf.py (the sizes are those of config.json).

    Bad:
        [model]
        path = "models/mine"
        init = "random"
        layers = 12
    Good:
        [model]
        path = "models/mine"
        init = "random"
    """
    folder = if_known(facts, "model_folder")
    if run.model.path is None or (folder is not None and folder.problem):
        return  # MOD002 reports the folder
    unset = Model()
    for name in Model.__annotations__:
        value = getattr(run.model, name)
        if name not in _NOT_SIZES and value != getattr(unset, name):
            yield unused(f"model.{name}", value, "`model.path` is set")


@rule("MOD013", Severity.ERROR)
def adapters_on_random_weights(run: RunSpec) -> Problems:
    """Adapters need a trained model below them.

    the weights stay as they are, and random weights with small corrections cannot model text

    Source: LoRA, arXiv 2106.09685, s. 4.1 (the update of a pre-trained weight has a low rank).

    Bad:
        [model.lora]
        rank = 8
    Bad (rl):
        [model.lora]
        rank = 8
    Good:
        [model]
        path = "models/mine"
        [model.lora]
        rank = 8
        [tokenizer]
        path = "models/mine"
        [optim]
        lr = 1e-4
    """
    model = run.model
    if model.lora is None or model.starts_trained:
        return
    at = "model.lora" if model.path is None else "model.init"
    what = "no `model.path` is set" if model.path is None else '`model.init` is "random"'
    fix = "the folder of a trained model in `model.path`, or take [model.lora] out"
    yield Problem(at, f"adapters on random weights: {what}", fix=fix)


@rule("MOD017", Severity.WARNING)
def recompute_every_without_recompute(run: RunSpec) -> Problems:
    """recompute_every has an effect only with recompute.

    without it every block keeps all of its activations

    Source: trainer/model/block_changes.py.

    Bad:
        [model]
        recompute_every = 2
    Good:
        [model]
        recompute = "full"
        recompute_every = 2
    """
    every = run.model.recompute_every
    if every != 1 and run.model.recompute == "none":
        fix = 'take it out, or model.recompute = "full"'
        yield unused("model.recompute_every", every, '`model.recompute` is "none"', fix)
