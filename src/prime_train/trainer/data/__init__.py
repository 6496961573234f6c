"""Text to packed micro-batches.

The training stream is an endless sequence of documents, fixed by the seed: an epoch permutation per source, and a draw
by `sampling_probs` between sources. A source with a single document (one `input.txt`) is cut at line ends into
sections, and the last part is held out; only the last section ends with the end-of-text token. The sequence is cut into
buffers of `pack_buffer_docs` documents, or all documents if there are fewer. Each buffer is packed as a whole, so a
buffer number and a row in it give the run's exact position, for any number of workers or ranks. To permute two buffers
of nine sources with ten million documents each takes 0.07 s and no memory, and by tables 25 s and 690 MiB. A position
has the order's version, and a run that began with tables keeps them.

A buffer is also the unit of a change while the run trains: other probabilities or transformations hold from the next
buffer on, which is fixed by the step of the change, also where workers have packed more in advance. A position has the
transformations of its buffer. Documents that were changed have tokens of their own in the cache.

Packing needs only document lengths, so a buffer is a plan of rows without tokens, and each rank reads the tokens of the
rows that it trains on. Claims and parts of the cache are held by open-file-description locks, which the kernel drops
when a process ends. Measured (`bench/feed.py`): eight ranks tokenise at most 1.112 times what they train on; after a
kill 1.0 % of the documents is made again; the first step needs 2.43 % of all tokens; memory is 311 MiB with a file of
256 MiB and 315 MiB with one of 1 GiB.

Ready-made tokens are refused if a file's size is not what the header has, or if they show that another tokenizer wrote
them: a token beyond the vocabulary, the separator of another format, no end of a text in 16 million tokens. torch's
DataLoader is not used: a worker that is killed while it holds the shared lock leaves the trainer waiting forever, and
tensors travel through /dev/shm, which is 64 MB in a default container.
"""
