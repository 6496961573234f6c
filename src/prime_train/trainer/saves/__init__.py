"""Checkpoints and exports: written, resumed from, converted.

A checkpoint that raises an exception while it loads, other than for memory or the disk, is recorded as
`CheckpointUnreadable`, and the one before it is tried. The manifest is not marked, because the bytes are as they were
saved. A save that needs the name of a link renames the link to `step_N.set_aside`. `ckpt to-hf` and `ckpt consolidate`
run in a child, because the CLI imports no torch. It compares every byte with its hash and reads one tensor at a time;
packed files are unpacked in memory. So the folder equals the run's own export, byte for byte.
"""
