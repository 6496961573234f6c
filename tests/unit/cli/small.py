"""The smallest run that trains: its config, and a text to train it on."""

from pathlib import Path

CONFIG = """
[run]
name = "small"
max_steps = 12

[model]
layers = 1
hidden_size = 32
heads = 2

[data]
ctx_tokens = 32
loader_workers = 0

[[data.sources]]
kind = "files"
path = "text"

[tokenizer]
vocab_size = 300

[batch]
micro_batch = 2

[checkpoint]
interval_steps = 4

[eval]
interval_steps = 6
held_out_ratio = 0.25
batches = 1
prompts = ["the "]
sample_tokens = 4
"""


def write(folder: Path) -> None:
    """run.toml and text/ in `folder`."""
    (folder / "run.toml").write_text(CONFIG, encoding="utf-8")
    (folder / "text").mkdir()
    for number in range(16):
        words = " ".join(f"the quick brown fox number {number} jumps over {other}" for other in range(60))
        (folder / "text" / f"{number}.txt").write_text(words, encoding="utf-8")
