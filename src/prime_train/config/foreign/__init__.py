"""Reads configs and launch scripts of other programs: axolotl, LLaMA-Factory, TRL, DeepSpeed, torchtitan and more.

A text is recognised by its keys (`recognise.py`, registry/foreign/recognise.toml), not by its name. Its values and
their places (`document.py`) become parts, one for each program, with the files that it points to (`follow.py`). What
only the run knows is `Open`, and no condition on it holds (`scope.py`, `conditions.py`).
"""
