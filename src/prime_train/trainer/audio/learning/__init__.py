"""What a run on audio learns: an encoder for spectrograms, three objectives around it, and probes that measure it.

`audio_model` joins the parts: the encoder, the objective that the config names, and a linear probe with stopped
gradients. A loss is a sum over clips, so any split over micro-batches and ranks gives the same gradient.
Only LeJEPA compares clips with each other: there the micro-batch counts, and a split over ranks
alone changes nothing.

What is random (hidden patches, views, directions) is drawn on the host, by seed and place alone, and goes
into the micro-batch. So a resumed run draws the same, on more or fewer ranks.

Pitch is absolute and time is not: each row has a learned embedding, and rotary positions have both.
"""
