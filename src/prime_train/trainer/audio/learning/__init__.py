"""What a run on audio learns: an encoder of spectrograms, three objectives around it, and probes that measure it.

`audio_model` joins the parts: the encoder, the objective that the config names, and a linear probe with stopped
gradients. A loss is a sum over clips, so any split of a batch over micro-batches and ranks gives the same gradient.
Only LeJEPA compares clips with each other: there the micro-batch is a part of the objective, and a split over ranks
alone changes nothing.

What is random (hidden patches, views, directions) is drawn on the host, by seed and place of the clip alone, and is
a part of the micro-batch. So a resumed run draws the same, on any number of ranks.

Pitch is absolute and time is not: each row of patches has a learned embedding, and rotary positions have both.
"""
