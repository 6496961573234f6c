"""Turns the parts of another program's file into a recipe, for estimates, offers and checks.

The keys are data (`fields.py`, registry/foreign/mapping); what they mean together is code: GPUs, sharding and types
(`layout.py`), and one function for each program (`on_accelerate.py`, `own_loops.py`). `draft.py` joins them with what
an answer lists.
"""
