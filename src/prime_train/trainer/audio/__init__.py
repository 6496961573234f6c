"""Audio for pretraining: from compressed clips in Arrow files to batches of log-mel spectrograms. No torch, no model.

A sample is a function of seed, epoch and place alone: the row by a permutation of each epoch, the crop by a random
number of seed, epoch and row. So the position of a run is one integer, and neither the processes nor their threads
change an order. Only the crop is decoded: a clip that lasts a minute costs a twelfth. Processes write samples
into shared memory, a slot for each batch.

A clip that cannot be decoded is counted by file and row, and another row takes its place, again by
seed, epoch and place; too many of them end the run. What a file holds is hostile until checked: rows, offsets, rates,
channels and lengths are bounded before memory is taken.
"""
