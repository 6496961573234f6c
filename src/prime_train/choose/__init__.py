"""Chooses the sizes of a run from a model and a machine, with a reason for each: the pure part of `init`.

`wishes.py` has what the user wants, `workload.py` what an environment does to a step. `bundled.py` and `prime_rl.py`
draft the file of a trainer; `sizes.py` tries what is left open with the estimator that `estimate` uses, and keeps the
fastest that leaves a tenth of each GPU free below the upper bound. No table of sizes decides anything, so a change of
the estimator changes what is chosen.

Concessions have an order: all weights before an adapter, the wanted length before a shorter one, the bundled trainer
before prime-rl. Nothing that does not fit is returned: the error names what would fit.
"""
