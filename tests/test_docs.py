from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from prime_train.config import detect
from prime_train.rules.judge import judge
from prime_train.spec.prime_rl_parts import Recipe

DOCS = Path(__file__).parents[1] / "docs"
GENERATE = DOCS / "generate.py"


def test_generated_pages_are_current() -> None:
    done = subprocess.run([sys.executable, GENERATE, "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_about_recipes_names_every_key_and_its_example_is_clean() -> None:
    page = (DOCS / "recipe.md").read_text(encoding="utf-8")
    assert not [name for name in Recipe._fields if f"`{name}`" not in page]
    example = page.split("```toml\n")[1].split("```")[0]
    assert judge(detect.read(example, "recipe.toml")).findings == ()
