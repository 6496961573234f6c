"""What is known of a model, and the verdict on it: `verify-model` (docs/models.md).

It judges a model as `rules` judge a run: with pure functions, from evidence that is gathered before. If the hub cannot
be reached, registry and tables still give what they know, and the exit code stays 4.
"""
