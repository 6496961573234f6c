"""The rules that may have something to say on a Python script: importing this registers them. Judges nothing.

They say nothing on a config file, and no lint of one loads what only they need. rules/catalogue.py has every family.
"""

from prime_train.rules import jax_processes, jax_runtime, schema, secrets
from prime_train.rules.base import RULES, Rule

FAMILIES = (schema, jax_processes, jax_runtime, secrets)


def rules() -> list[Rule]:
    """The rules of these families alone: of a script, none that is made for a config is said to have passed."""
    families = {family.__name__.rpartition(".")[2] for family in FAMILIES}
    return [rule for rule in RULES.values() if rule.family in families]


__all__ = ["FAMILIES", "rules"]
