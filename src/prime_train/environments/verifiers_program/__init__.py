"""Serves one taskset of verifiers 0.4 in the taskset's interpreter: needs the standard library and verifiers alone.

That interpreter may lack prime_train, so the modules import each other by relative names.
"""
