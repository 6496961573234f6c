"""Scripts of real trainers with tiny models, which end as often as a test likes and go on as far as they saved.

None knows of prime-train, but for the loop of one's own and that in JAX, which have the lines of docs/live.md. In the
folder of a script a test says what happens: `pace` has the seconds of a step, `nap` makes the next step last for ever.
`steps` gets the number of each step, `rankN.pid` the process of a rank, `final.txt` a hash of the last
weights.
"""

from __future__ import annotations

from typing import NamedTuple

STEPS, EVERY = 48, 3  # in all, and between two checkpoints


class TrainerScript(NamedTuple):
    name: str
    module: str  # its interpreter must have it
    text: str
    saved: str  # a glob of its checkpoints
    ranks: int = 1
    settings: tuple[str, ...] = ()  # what nothing but its user can know
    after_sigterm: str = "unknown"  # the cause class of its end after SIGTERM to it; "unknown": it exits with 0


_BEGIN = f"""
import hashlib, os, random, signal, time
STEPS, EVERY = {STEPS}, {EVERY}
RANK = os.environ.get("RANK", "0")
os.makedirs("disk/out", exist_ok=True)
open(f"rank{{RANK}}.pid", "w").write(str(os.getpid()))
def pass_step(step):
    if RANK == "0":
        with open("steps", "a") as file:
            file.write(f"{{step}}\\n")
    if os.path.exists("nap") and int(RANK) + 1 == int(os.environ.get("WORLD_SIZE", "1")):
        os.remove("nap")
        time.sleep(10**6)
    time.sleep(float(open("pace").read()))
def write_hash(text):
    if RANK == "0":
        open("final.txt", "w").write(hashlib.sha256(text.encode()).hexdigest())
"""
_TORCH = """
import torch
torch.manual_seed(0); torch.set_num_threads(1)
def write_end(model):
    write_hash("".join(f"{name} {value.tolist()}" for name, value in sorted(model.state_dict().items())))
"""
_LLAMA = """
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from tokenizers import Tokenizer, models, pre_tokenizers
class Pause(TrainerCallback):
    def on_step_end(self, args, state, *_, **__):
        pass_step(state.global_step)
def build(dropout=0.1):
    size = dict(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    size |= dict(attention_dropout=dropout, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    return LlamaForCausalLM(LlamaConfig(**size))
words = {word: number for number, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *map(str, range(36))])}
inner = Tokenizer(models.WordLevel(words, unk_token="<unk>")); inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
common = dict(
    output_dir="disk/out", max_steps=STEPS, save_steps=EVERY, logging_steps=1, per_device_train_batch_size=2,
    use_cpu=True, report_to="none", seed=3, learning_rate=1e-3, save_total_limit=4,
)
"""
_HUGGING_FACE = """
from transformers import Trainer, TrainingArguments
rows = [{"input_ids": torch.arange(8) + n % 8, "labels": torch.arange(8) + n % 8} for n in range(64)]
trainer = Trainer(model=build(), args=TrainingArguments(**common), train_dataset=rows, callbacks=[Pause()])
trainer.train()
if trainer.state.global_step == STEPS: write_end(trainer.model)
"""
_SFT = """
from datasets import Dataset
from trl import SFTConfig, SFTTrainer
rows = Dataset.from_list([{"text": " ".join(str((n + k) % 36) for k in range(10))} for n in range(64)])
arguments = SFTConfig(**common, enable_jit_checkpoint=True, max_length=16, dataset_num_proc=None)
trainer = SFTTrainer(
    build(dropout=0.0), args=arguments, train_dataset=rows, processing_class=tokenizer, callbacks=[Pause()],
)
trainer.train()
if trainer.state.global_step == STEPS: write_end(trainer.model)
"""
_GRPO = """
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
rows = Dataset.from_list([{"prompt": str(n % 36)} for n in range(32)])
arguments = GRPOConfig(**common, num_generations=2, max_completion_length=4)
trainer = GRPOTrainer(
    build(), reward_funcs=[lambda completions, **_: [float(len(text)) for text in completions]], args=arguments,
    train_dataset=rows, processing_class=tokenizer, callbacks=[Pause()],
)
trainer.train()
if trainer.state.global_step == STEPS: write_end(trainer.model)
"""
_LIGHTNING = """
import lightning
class Tiny(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        pass_step(self.trainer.global_step + 1)
        return (self.layer(batch[0]) - 1).square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(64, 4)), batch_size=4)
keep = lightning.pytorch.callbacks.ModelCheckpoint(dirpath="disk/out", every_n_train_steps=EVERY, save_top_k=-1)
trainer = lightning.Trainer(max_steps=STEPS, accelerator="cpu", logger=False, callbacks=[keep])
model = Tiny()
trainer.fit(model, data)
if trainer.global_step == STEPS: write_end(model)
"""
_OWN = """
from pathlib import Path
from prime_train import live
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
model = torch.nn.Linear(4, 1); optimizer = torch.optim.AdamW(model.parameters(), lr=0.01); first = 0
if live.resume_path():
    saved = torch.load(Path(live.resume_path()) / "state.pt")
    model.load_state_dict(saved["model"]); optimizer.load_state_dict(saved["optimizer"]); first = saved["step"]
def save(step):
    folder = Path("disk/out") / f"step_{step}"; folder.mkdir(parents=True, exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, folder / "state.pt"); live.checkpoint(folder, step)
live.total(STEPS)
for step in range(first + 1, STEPS + 1):
    loss = (model(torch.ones(2, 4) * step) - 1).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    pass_step(step)
    live.step(step, loss=loss)
    stops = live.should_stop()
    if step % EVERY == 0 or stops:
        save(step)
    if stops:
        break
else:
    write_end(model); live.finish()
"""
_RANKS = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
def train(first, save):
    for step in range(first + 1, STEPS + 1):
        loss = (model(torch.ones(2, 4) * (step + dist.get_rank())) - 1).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        pass_step(step)
        if RANK == "0":
            print(f"step {step} loss {loss.item():.4f}")
        flag = torch.tensor([len(asked)]); dist.all_reduce(flag)
        if step % EVERY == 0 or flag.item():
            save(step)
        if flag.item():
            return
    write_end(model)
"""
_DDP = """
import glob, re
found = sorted(glob.glob("disk/out/step_*.pt"), key=lambda path: int(re.findall(r"\\d+", path)[-1]))
first = 0
if found:
    saved = torch.load(found[-1])
    model.load_state_dict(saved["model"]); optimizer.load_state_dict(saved["optimizer"]); first = saved["step"]
def save(step):
    if RANK == "0":
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, f"disk/out/step_{step}.pt")
    dist.barrier()
train(first, save)
dist.destroy_process_group()
"""
_DCP = """
import sys
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
def collect(step):
    weights, state = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": state, "step": torch.tensor([step])}
first = 0
if "--resume" in sys.argv:
    state = collect(0)
    dcp.load(state, checkpoint_id=sys.argv[sys.argv.index("--resume") + 1])
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    first = int(state["step"].item())
train(first, lambda step: dcp.save(collect(step), checkpoint_id=f"disk/out/step_{step}"))
dist.destroy_process_group()
"""
_ORBAX = """
import jax, jax.numpy as jnp, numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from prime_train import live, jax as prime_jax
prime_jax.initialize()
mesh = Mesh(np.array(jax.devices()), ("data",))
whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
def place(value):
    return jax.make_array_from_callback(value.shape, whole, lambda index: value[index])
state = {"weights": place(np.zeros((64, 8), np.float32)), "step": place(np.zeros((), np.int32))}
@jax.jit
def update(state, batch):
    def measure(weights):
        return jnp.square(batch @ weights - 1).mean()
    loss, slope = jax.value_and_grad(measure)(state["weights"])
    return {"weights": state["weights"] - 0.01 * slope, "step": state["step"] + 1}, loss
options = ocp.CheckpointManagerOptions(save_interval_steps=EVERY, max_to_keep=4)
manager = ocp.CheckpointManager(os.path.abspath("disk/out"), options=options)
if manager.latest_step() is not None:
    state = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(state))
live.total(STEPS)
for step in range(int(state["step"]) + 1, STEPS + 1):
    rows = np.random.default_rng(step * 2 + jax.process_index()).normal(size=(4, 64)).astype(np.float32)
    state, loss = update(state, jax.make_array_from_process_local_data(split, rows))
    loss.block_until_ready()
    pass_step(step)
    live.step(step, loss=float(loss))
    stops = live.should_stop()
    manager.save(step, args=ocp.args.StandardSave(state), force=stops)
    manager.wait_until_finished()
    if stops:
        break
else:
    write_hash(str(np.asarray(state["weights"]).tolist())); live.finish()
jax.distributed.shutdown()
"""

_STEP_LINE = r"command.progress.log='''^step (?P<step>\d+) loss (?P<loss>\S+)'''"
_PLACE = 'command.checkpoints.dir="disk/out"'
SCRIPTS = (
    TrainerScript(
        "transformers", "accelerate", _BEGIN + _TORCH + _LLAMA + _HUGGING_FACE, "checkpoint-*", after_sigterm="signal"
    ),
    TrainerScript("sft", "trl", _BEGIN + _TORCH + _LLAMA + _SFT, "checkpoint-*"),
    TrainerScript("grpo", "trl", _BEGIN + _TORCH + _LLAMA + _GRPO, "checkpoint-*", after_sigterm="signal"),
    TrainerScript("lightning", "lightning", _BEGIN + _TORCH + _LIGHTNING, "*.ckpt"),
    TrainerScript("own", "torch", _BEGIN + _TORCH + _OWN, "step_*"),
    TrainerScript(
        "ddp",
        "torch",
        _BEGIN + _TORCH + _RANKS + _DDP,
        "step_*",
        2,
        (
            _STEP_LINE,
            f"run.max_steps={STEPS}",
            _PLACE,
            'command.checkpoints.layout="torch"',
            'command.resume.how="itself"',
            'command.resume.aside="rename"',
        ),
    ),
    TrainerScript(
        "dcp",
        "torch",
        _BEGIN + _TORCH + _RANKS + _DCP,
        "step_*",
        2,
        (
            _STEP_LINE,
            f"run.max_steps={STEPS}",
            _PLACE,
            'command.checkpoints.layout="dcp"',
            'command.resume.how="argument"',
            'command.resume.template="--resume {path}"',
            'command.resume.aside="rename"',
        ),
    ),
    TrainerScript("orbax", "orbax.checkpoint", _BEGIN + _ORBAX, "[0-9]*", 2, (_PLACE,)),
)
