"""The model that a run names, and whether its parts agree on it. Pure."""

from __future__ import annotations

import re

from prime_train.config.prime_rl.schema import features_of
from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule, suggest
from prime_train.spec import RunSpec
from prime_train.spec.answers import part_of, prime_rl_of

_VISION_NAME = r"(?i)(?:^|[-_/])(?:vl|vision|llava|internvl\d*|pixtral|paligemma|qwen[\d.]*-vl)(?:[-_/]|\d|$)"

_QUANTIZED = r"(?i)(?:[-_](?:fp8|fp4|nvfp4|mxfp4|mxfp8|bf16|awq|gptq|int4|int8|w8a8|w4a16|dynamic|quantized))+$"


@rule("MOD005", Severity.WARNING)
def vision_model_for_text(run: RunSpec) -> Problems:
    """A vision-language model needs [model.vlm], and a text run needs none.

    the vision tower takes memory and its layers have other names: without the section, images end the run at step 1

    Judged by the name of the model.

    Source: prime-rl's "Received multimodal samples but [model.vlm] is not set".

    Bad (prime-rl 2026-08):
        [model]
        name = "Qwen/Qwen3-VL-4B-Instruct"
    Good (prime-rl 2026-08):
        [model]
        name = "Qwen/Qwen3-1.7B"
    """
    trainer = prime_rl_of(run).trainer
    if trainer is None or trainer.model_name is None or trainer.vision is not False:  # None: there is no such section
        return
    if re.search(_VISION_NAME, trainer.model_name):
        yield Problem(
            "trainer.model_name",
            f"{trainer.model_name} sees images, and [model.vlm] is not set",
            fix="take the text model of the family, or add [model.vlm]",
        )


@rule("MOD006", Severity.WARNING)
def code_of_others(run: RunSpec) -> Problems:
    """trust_remote_code runs the model repository's own Python.

    it runs with your keys and your files, and changes whenever the repository does: no revision pins it here

    Source: transformers, trust_remote_code.

    Bad (prime-rl 2026-08):
        [inference.vllm]
        trust_remote_code = true
    Good (prime-rl 2026-08):
        [inference.vllm]
        trust_remote_code = false
    """
    for name in ("trainer", "rollout", "inference"):
        part = part_of(run, name)
        if part is not None and part.trust_remote_code:
            yield suggest(
                f"{name}.trust_remote_code",
                "true",
                None,
                fix="take it out if transformers and vLLM support the model themselves",
            )
            return


@rule("MOD012", Severity.NOTE)
def revision_not_pinned(run: RunSpec) -> Problems:
    """A server without a trainer should pin the revision of its model.

    the hub serves the newest revision: two starts of one file may use two models

    prime-rl has no such key for its trainer: a pinned server beside a trainer starts from other weights, and is
    reported too. A local folder needs no revision.

    Source: vLLM, --revision; huggingface.co, docs of the hub, revisions.

    Bad (prime-rl 2026-08 inference):
        [vllm]
        revision = "-"
    Bad (prime-rl 2026-08 inference):
        [vllm]
        revision = "main"
    Bad (prime-rl 2026-08):
        [inference.vllm]
        revision = "70d244cc86ccca08cf5af4e1e306ecf908b1ad5e"
    Good (prime-rl 2026-08 inference):
        [vllm]
        revision = "70d244cc86ccca08cf5af4e1e306ecf908b1ad5e"
    """
    parts = prime_rl_of(run)
    inference = run.inference
    name = inference.model_name if inference is not None else None
    if inference is None or name is None or name.count("/") != 1 or name.startswith((".", "/", "~")):
        return
    if parts.trainer is None and parts.rollout is None:
        if inference.revision in (None, "main"):
            written = "the revision is not set" if inference.revision is None else 'the revision is "main", a branch'
            fix = "`inference.revision` = the commit that the model page shows"
            yield Problem("inference.revision", f"{name}: {written}", fix=fix)
    elif parts.trainer is not None and inference.revision is not None and parts.trainer.model_name == name:
        yield Problem(
            "inference.revision",
            f"{inference.revision} is served, and the trainer loads the newest {name}",
            fix="download that revision, and name its folder as the model of both",
            why="the first rollouts come from other weights than those that are trained",
            severity=Severity.WARNING,
        )


@rule("MOD007", Severity.ERROR)
def models_disagree(run: RunSpec) -> Problems:
    """Trainer, orchestrator and inference must name one model.

    rollouts of one model cannot train another: prime-rl refuses them, or trains one model and serves its default

    A server that is not in the file may give the model a name of its own, so then it is a warning.

    Source: prime-rl's validator "inference and orchestrator must have the same model name".

    Bad (prime-rl 2026-08):
        [inference.vllm]
        model = "Qwen/Qwen3-0.6B"
    Bad (prime-rl 2026-08):
        [trainer.model]
        name = "Qwen/Qwen3-0.6B"
    Good (prime-rl 2026-08):
        [inference.vllm]
        model = "Qwen/Qwen3-1.7B"
    """
    parts = {name: getattr(part_of(run, name), "model_name", None) for name in ("inference", "rollout", "trainer")}
    if prime_rl_of(run).deployment is None:  # the file of one component, or a fine-tuning beside its evaluation
        del parts["trainer"]
    named = {f"{name}.model_name": model for name, model in parts.items() if model is not None}
    for at, model in named.items():
        other = next((name for name, each in named.items() if _differ(at, model, name, each)), None)
        if other is not None:
            served = run.inference is not None
            yield Problem(
                at,
                f"{model} is not `{other}` {named[other]}",
                fix=f"name one model, once for all parts: `{other}` or `{at}` is the wrong one, or is not set",
                severity=None if served else Severity.WARNING,
            )
            return


def _differ(at: str, model: str, other_at: str, other: str) -> bool:
    """Whether two parts name different models. The server may have a quantized copy of the trainer's."""
    if "trainer.model_name" in (at, other_at):
        model, other = (re.sub(_QUANTIZED, "", name) for name in (model, other))
    return model != other


@rule("MOD008", Severity.WARNING)
def template_without_tools(run: RunSpec) -> Problems:
    """The chat template of a run with tools must show the tools.

    the model does not see the tools and answers without them: every task that needs a tool fails

    A template that is a path is not judged.

    Source: transformers, chat templates (the variable `tools`).

    Bad (prime-rl 2026-08):
        [tokenizer]
        chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        [[orchestrator.train.source]]
        name = "reverse-text"
        env = {taskset = {id = "reverse-text"}, agent = {harness = {id = "bash"}, runtime = {type = "subprocess"}}}
    Good (prime-rl 2026-08):
        [tokenizer]
        chat_template = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}"
        [[orchestrator.train.source]]
        name = "reverse-text"
        env = {taskset = {id = "reverse-text"}, agent = {harness = {id = "bash"}, runtime = {type = "subprocess"}}}
    """
    parts = prime_rl_of(run)
    if parts.trainer is None or parts.environments is None:
        return
    template = parts.trainer.chat_template or ""
    calls = any(source.harness not in (None, "null") for source in parts.environments.train or ())
    if calls and "{" in template and "tools" not in template:
        yield Problem(
            "trainer.chat_template", "it never mentions `tools`", fix="take it out: the model's own template has them"
        )


@rule("MOD009", Severity.ERROR)
def templates_disagree(run: RunSpec) -> Problems:
    """Trainer and orchestrator must use one chat template.

    tokens that inference never saw would be trained on: prime-rl refuses two templates

    Source: prime-rl's validator on tokenizer.chat_template.

    Bad (prime-rl 2026-08):
        [trainer.tokenizer]
        chat_template = "{{ messages }}"
        [orchestrator.tokenizer]
        chat_template = "{{ messages | tojson }}"
    Good (prime-rl 2026-08):
        [trainer.tokenizer]
        chat_template = "{{ messages }}"
        [orchestrator.tokenizer]
        chat_template = "{{ messages }}"
    """
    parts = prime_rl_of(run)
    trainer, rollout = parts.trainer, parts.rollout
    if trainer is None or rollout is None or trainer.chat_template is None or rollout.chat_template is None:
        return
    if trainer.chat_template != rollout.chat_template:
        yield suggest(
            "rollout.chat_template", "it is not the template of `trainer.chat_template`", trainer.chat_template
        )


@rule("MOD010", Severity.WARNING)
def half_precision_inference(run: RunSpec) -> Problems:
    """Inference should compute in the type of the trainer, bf16.

    fp16 rounds differently from bf16: trainer and inference give one token two probabilities; fp32 takes twice the
    memory

    Source: arXiv 2510.26788 (trainer and inference mismatch in RL comes from precision).

    Bad (prime-rl 2026-08):
        [inference.vllm]
        dtype = "float16"
    Good (prime-rl 2026-08):
        [inference.vllm]
        dtype = "bfloat16"
    """
    inference = run.inference
    if inference is not None and prime_rl_of(run).trainer is not None and inference.dtype in ("float16", "float32"):
        yield suggest("inference.dtype", f'"{inference.dtype}", and the trainer computes in bf16', "bfloat16")


@rule("MOD011", Severity.ERROR)
def vision_needs_bf16(run: RunSpec) -> Problems:
    """A vision-language model is trained in bf16 only.

    its vision tower has no fp32 kernels there: prime-rl refuses another type

    Source: prime-rl 2026-08, validator on [model.vlm].

    Bad (prime-rl 2026-08):
        [model]
        name = "Qwen/Qwen3-VL-4B-Instruct"
        [model.vlm]
        vision_encoder_attr = "model.visual"
        language_model_attr = "model.language_model"
        [trainer.model]
        impl = "custom"
        optimization_dtype = "float32"
        reduce_dtype = "bfloat16"
    Good (prime-rl 2026-08):
        [model]
        name = "Qwen/Qwen3-VL-4B-Instruct"
        [model.vlm]
        vision_encoder_attr = "model.visual"
        language_model_attr = "model.language_model"
        [trainer.model]
        impl = "custom"
        optimization_dtype = "bfloat16"
        reduce_dtype = "bfloat16"
    """
    trainer = prime_rl_of(run).trainer
    if trainer is None or not trainer.vision or not features_of(run).vision_needs_bf16:
        return
    for name in ("optimization_dtype", "reduce_dtype"):
        if getattr(trainer, name) == "float32":
            yield suggest(f"trainer.{name}", '"float32", with [model.vlm]', "bfloat16")
