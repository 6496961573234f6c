"""Scripts of real trainers with tiny models. Each writes a hash of its last weights; PAUSE_S makes a step long enough.

None knows of prime-train, but for the loop of one's own, which has the lines of docs/live.md.
"""

from __future__ import annotations

from typing import NamedTuple


class TrainerScript(NamedTuple):
    name: str
    module: str  # its interpreter must have it
    text: str
    saved: str  # a glob of its checkpoints


_BEGIN = """
import hashlib, os, random, time
import torch
torch.manual_seed(0); torch.set_num_threads(1)
PAUSE_S = float(os.environ.get("PAUSE_S", "0"))
def write_end(model):
    text = "".join(f"{name} {value.tolist()}" for name, value in sorted(model.state_dict().items()))
    open("final.txt", "w").write(hashlib.sha256(text.encode()).hexdigest())
"""
_LLAMA = """
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from tokenizers import Tokenizer, models, pre_tokenizers
class Pause(TrainerCallback):
    def on_step_end(self, *_, **__):
        time.sleep(PAUSE_S)
def build():
    size = dict(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    return LlamaForCausalLM(LlamaConfig(**size, attention_dropout=0.1, bos_token_id=1, eos_token_id=2, pad_token_id=0))
words = {word: number for number, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *map(str, range(36))])}
inner = Tokenizer(models.WordLevel(words, unk_token="<unk>")); inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
common = dict(
    output_dir="out", max_steps=24, save_steps=3, logging_steps=1, per_device_train_batch_size=2, use_cpu=True,
    report_to="none", seed=3, learning_rate=1e-3, save_total_limit=4,
)
"""
_HUGGING_FACE = """
from transformers import Trainer, TrainingArguments
rows = [{"input_ids": torch.arange(8) + n % 8, "labels": torch.arange(8) + n % 8} for n in range(64)]
trainer = Trainer(model=build(), args=TrainingArguments(**common), train_dataset=rows, callbacks=[Pause()])
trainer.train()
if trainer.state.global_step == 24: write_end(trainer.model)
"""
_SFT = """
from datasets import Dataset
from trl import SFTConfig, SFTTrainer
rows = Dataset.from_list([{"text": " ".join(str((n + k) % 36) for k in range(10))} for n in range(64)])
arguments = SFTConfig(**common, max_length=16, dataset_num_proc=None)
trainer = SFTTrainer(build(), args=arguments, train_dataset=rows, processing_class=tokenizer, callbacks=[Pause()])
trainer.train()
if trainer.state.global_step == 24: write_end(trainer.model)
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
if trainer.state.global_step == 24: write_end(trainer.model)
"""
_LIGHTNING = """
import lightning
class Tiny(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        time.sleep(PAUSE_S)
        return (self.layer(batch[0]) - 1).square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(64, 4)), batch_size=4)
keep = lightning.pytorch.callbacks.ModelCheckpoint(dirpath="out", every_n_train_steps=3, save_top_k=-1)
trainer = lightning.Trainer(max_steps=24, accelerator="cpu", logger=False, callbacks=[keep])
model = Tiny()
trainer.fit(model, data)
if trainer.global_step == 24: write_end(model)
"""
_OWN = """
from pathlib import Path
from prime_train import live
model = torch.nn.Linear(4, 1); optimizer = torch.optim.AdamW(model.parameters(), lr=0.01); first = 0
if live.resume_path():
    saved = torch.load(Path(live.resume_path()) / "state.pt")
    model.load_state_dict(saved["model"]); optimizer.load_state_dict(saved["optimizer"]); first = saved["step"]
def save(step):
    folder = Path("out") / f"step_{step}"; folder.mkdir(parents=True, exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, folder / "state.pt"); live.checkpoint(folder, step)
live.total(24)
for step in range(first + 1, 25):
    time.sleep(PAUSE_S)
    loss = (model(torch.ones(2, 4) * step) - 1).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    live.step(step, loss=loss)
    stops = live.should_stop()
    if step % 3 == 0 or stops:
        save(step)
    if stops:
        break
else:
    write_end(model); live.finish()
"""

SCRIPTS = (
    TrainerScript("transformers", "accelerate", _BEGIN + _LLAMA + _HUGGING_FACE, "out/checkpoint-*"),
    TrainerScript("sft", "trl", _BEGIN + _LLAMA + _SFT, "out/checkpoint-*"),
    TrainerScript("grpo", "trl", _BEGIN + _LLAMA + _GRPO, "out/checkpoint-*"),
    TrainerScript("lightning", "lightning", _BEGIN + _LIGHTNING, "out/*.ckpt"),
    TrainerScript("own", "torch", _BEGIN + _OWN, "out/step_*"),
)
