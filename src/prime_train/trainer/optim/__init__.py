"""Optimizers beside torch's own.

Muon takes the matrices of the blocks, whose shards are gathered one matrix at a time, and AdamW the rest, stacked
experts too. Both are one optimizer, so a checkpoint has one state.
"""
