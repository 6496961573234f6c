"""Runs one step in this process: `python -m gpu.child STEP MODULE --rows FILE`. Exit code 4 without a GPU for it."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from gpu.bench import Bench, write_line
from gpu.steps import OUT_OF_REACH


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step")
    parser.add_argument("module")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--modules", default="", help="what the step imports, separated by commas")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args(arguments)
    missing = [name for name in given.modules.split(",") if name and not is_installed(name)]
    if missing:
        write_line(given.rows, {"skipped": f"not installed here: {', '.join(missing)}"})
        return 0
    about = {"card": "CPU", "torch": version("torch")}
    if given.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            print("there is no GPU: nothing is measured (`--device cpu --tiny` shows on a CPU that the steps work)")
            return OUT_OF_REACH
        about = {"card": torch.cuda.get_device_name(), "torch": torch.__version__}
    write_line(given.rows, {"about": about | {"tiny": given.tiny}})
    bench = Bench(given.step, given.device, given.tiny, given.rows)
    import_module(given.module).measure(bench)
    return int(bool(bench.failed))


def is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that a module is in
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
