"""Turns a config's text into a RunSpec with positions and faults. Judges nothing.

A `Reading` has the key map from RunSpec fields to the file's own keys, so a rule is written once, against the RunSpec.
A problem at a field for which the format has no key is dropped. An overlay, or a file with unreadable lines, is a
`partial` Reading: a rule that needs no facts then judges only keys that the file sets, because the rest of the run may
set the others. `run` and `estimate` use the merged text where files have a + between them; `lint` and `validate` judge
the merged documents, so a finding names the file and the line.

A patch is safe if every value that the user chose keeps its meaning. The place that makes the fault decides this
(`Fault.safe`), never a finding's code. A misspelling is safe only if few letters differ in a long name and no other
table has the name. A key of another table is suggested by `registry/other_names.toml` alone, and is never safe. A
deletion is safe only for an empty table. `lint --fix` applies no patch that raises the number of errors. A run
directory is neither searched nor fixed, because the configs in it are records.
"""
