"""[model] and [tokenizer]: the decoder that is trained, and its tokens. Values only; as run.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from prime_train.spec.annotations import Doc, Ge, Gt, NotNegative, Positive
from prime_train.spec.rl import Adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The decoder to train."""

    path: Annotated[
        str | None,
        Doc(
            "A Hugging Face folder of a Llama, Qwen2, Qwen3, Qwen3-MoE, Mistral, GLM-4-MoE or GPT-2. Its config.json "
            "replaces the size fields below."
        ),
    ] = None
    init: Annotated[
        Literal["weights", "random"], Doc("With `path`: load the weights, or use only the architecture.")
    ] = "weights"
    init_from: Annotated[
        str | None,
        Doc("Another run, by its name under run.dir or its directory: start with the weights of its checkpoint."),
    ] = None
    init_step: Annotated[
        Positive | None, Doc("With `init_from`: the step of the checkpoint; unset = its newest complete one.")
    ] = None
    init_optimizer: Annotated[bool, Doc("With `init_from`: take the optimizer's state as well as the weights.")] = False
    layers: Annotated[Positive, Doc("Decoder blocks.")] = 4
    hidden_size: Annotated[Positive, Doc("Width of the residual stream.")] = 256
    heads: Annotated[Positive, Doc("Query heads.")] = 4
    kv_heads: Annotated[Positive | None, Doc("Key and value heads; unset = the number of query heads.")] = None
    head_dim: Annotated[Positive | None, Doc("Width of one head; unset = hidden_size / heads.")] = None
    mlp_size: Annotated[
        Positive | None, Doc("Inner width of the SwiGLU block; unset = 8/3 of hidden_size, rounded up to 64.")
    ] = None
    rope_theta: Annotated[float, Gt(0), Doc("Base of the rotary embedding.")] = 10000.0
    norm_eps: Annotated[float, Gt(0), Doc("Epsilon of RMSNorm.")] = 1e-05
    tie_embeddings: Annotated[bool, Doc("The output head shares the input embedding.")] = True
    qk_norm: Annotated[bool, Doc("RMSNorm on queries and keys, as in Qwen3.")] = False
    experts: Annotated[NotNegative, Doc("Experts of each block instead of one MLP; 0 = none.")] = 0
    experts_per_token: Annotated[Positive, Doc("`experts`: those that a token visits.")] = 2
    expert_mlp_size: Annotated[
        Positive | None, Doc("`experts`: inner width of one; unset = mlp_size / experts_per_token, rounded up to 64.")
    ] = None
    shared_experts: Annotated[
        NotNegative, Doc("`experts`: further experts that every token visits, computed as one MLP.")
    ] = 0
    router: Annotated[
        Literal["sigmoid", "softmax"],
        Doc(
            "`experts`: how a token chooses. `sigmoid`: as DeepSeek-V3, with a bias for each expert that balances the "
            "load; exported as glm4_moe. `softmax`: as Qwen3-MoE, without one; needs qk_norm."
        ),
    ] = "sigmoid"
    balance_rate: Annotated[
        Annotated[float, Ge(0)] | None, Doc("`sigmoid`: change of the balancing biases after each step; unset = 0.001.")
    ] = None
    router_z_loss: Annotated[
        float, Ge(0), Doc("Weight of the squared log-sum-exp of the router's logits in the gradient; 0 = none.")
    ] = 0.0
    compile: Annotated[
        bool, Doc("Compile the blocks with torch.compile. The start takes longer; no gain on a CPU.")
    ] = False
    recompute: Annotated[
        Literal["none", "selective", "full"],
        Doc(
            "Activation checkpointing: compute the activations of a block again in the backward, all of them (`full`) "
            "or those that need no matrix product and no attention (`selective`). Less memory, more time."
        ),
    ] = "none"
    recompute_every: Annotated[Positive, Doc("`recompute`: only every N-th block, the first one included.")] = 1
    pad_vocab: Annotated[
        bool, Doc("Rows of embedding and head rounded up to 128, which a GPU computes faster; no token has them.")
    ] = False
    lora: Annotated[Adapter | None, Doc("Train low-rank adapters instead of the weights.")] = None

    @property
    def expert_balance_rate(self) -> float:
        """Change of the balancing biases after a step. Routers without such biases do not use it."""
        return 0.001 if self.balance_rate is None else self.balance_rate

    @property
    def starts_trained(self) -> bool:
        """Whether the first weights are those of a model folder or of another run."""
        return self.init_from is not None or (self.path is not None and self.init == "weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """The conversion of text into tokens."""

    path: Annotated[
        str | None, Doc("A Hugging Face tokenizer folder. Unset: a byte-level BPE is trained on the data and cached.")
    ] = None
    vocab_size: Annotated[int, Ge(260), Doc("Vocabulary size of a BPE that is trained.")] = 4096
