"""The training loops, and the step that they share.

A kind of training is one value, `Work`: the rows of a rank, the loss, the unit of the progress, and the evaluations.
Text and chats have one loop over different rows. Rewards have their own loop, because their rows are made by the
weights that they train. A step counts the labelled tokens on all ranks first, so any split over micro-batches and ranks
gives the same gradient. The device decides whether the weights may change (`found_inf` of torch's fused AdamW, and the
same in Muon), so the loop launches the next step before it reads the numbers of the last one: one wait for the GPU in a
step, which test_host_waits.py counts without a GPU. A step whose loss or gradient norm is not finite changes no weight:
it ends the run, or with `optim.on_spike = "skip"` it is left out, as is a step whose norm is far above the former ones;
more than eight skips of a hundred steps end the run.
"""
