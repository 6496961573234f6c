"""Reads prime-rl's configs of every generation by tables of their legal keys.

A table in `registry/prime_rl/` has each legal key with the RunSpec field that it feeds, and as `features` what no key
shows. No other code compares generations; the newest is the last one by name, which is a year and month. An imported
table inherits the features that the shipped generation with the most common keys has; with `--keep` it is used from the
user's cache, before a shipped one with the same name.

What prime-rl refuses in a file of legal keys is data, too (`registry/prime_rl_validators/`). A value that is faulty, or
that another file may set, leaves a validator undecided. A refusal is CFG012, and is left out where a rule reports the
same keys, because the rule has the better repair. `estimate` accepts a refused combination, because it changes no
value.
"""
