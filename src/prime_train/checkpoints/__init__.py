"""Which checkpoints are complete, which may be deleted, and how they are packed. Imports no torch.

The supervisor checks the sizes in a manifest; the trainer compares every byte with its SHA-256 before it loads. A
folder that fails is marked as damaged and reported as `CheckpointUnreadable`, and the one before it is used. A folder
is listed once and a manifest is read once, because a run may have thousands of checkpoints; a manifest that changes
meanwhile is judged again. Before the manifest is written, every file, the folder and its name in `checkpoints/` are
synced: test_power_loss.py cuts the power after every change of a recorded run. No deletion, resume or retention follows
a symbolic link; a linked `step_N` is listed with its problem and stays. A deletion renames the folder first. `ckpt
prune`, `compress` and `restore` hold the run's lock, so none of them works beside a trainer.

A packed checkpoint is complete; rank 0 restores it before the ranks load it. The hash in the manifest stays that of the
file as it was saved, and each segment of 256 MiB has the hash of everything before it. On the same checkpoint of fp32
weights and moments blosc2 4.14 saves 16.2 % at best and 13 % where it is fast, byte planes save 16.4 %, so blosc2 is
not used. Only `ckpt compress --moments bf16` loses anything: half of an fp32 checkpoint goes, and the weights stay
bit-equal. The manifest names the rounded ranges while a head waits to be packed; the hash is that of the rounded file,
and `sha256_as_saved` stays beside it.
"""
