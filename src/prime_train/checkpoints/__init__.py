"""Which checkpoints are complete, which may be deleted, and how they are packed. Imports no torch.

The supervisor checks the sizes in a manifest; the trainer compares every byte with the SHA-256 before it loads. A
folder that fails is marked as damaged and reported as `CheckpointUnreadable`, and the one before it is used. A folder
is listed once and a manifest is read once, because a run may have thousands of checkpoints; a manifest that changes
meanwhile is judged again. Before the manifest is written, every file, the folder and the entry in `checkpoints/` are
synced: test_power_loss.py cuts the power after every change of a recorded run. No deletion, resume or retention follows
a symbolic link; a linked `step_N` is listed as a problem and stays. A deletion renames the folder first. `ckpt prune`,
`compress` and `restore` hold the run's lock, so none of them works beside a trainer.

A packed checkpoint is complete; rank 0 restores it before the ranks load it. The manifest keeps the hash that the saved
file had, and each segment (256 MiB) has a hash over everything before it. On the same checkpoint of fp32 weights and
moments blosc2 4.14 saves 16.2 % at best and 13 % where it is fast, byte planes save 16.4 %, so blosc2 is not used. Only
`ckpt compress --moments bf16` loses anything: an fp32 checkpoint gets half as large, and the weights stay bit-equal.
The manifest names the rounded ranges while a head waits to be packed; the hash is the rounded file's, and
`sha256_as_saved` stays beside it.
"""
