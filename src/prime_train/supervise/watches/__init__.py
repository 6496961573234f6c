"""The watches of a run, one folder each. A watch reports what is wrong; the policy decides what follows.

A watch returns what is wrong at present and never blocks: a small program in a child takes the samples. One that has
ended is followed by another after 10 s, and later each time, up to 5 min. Such a child lives as long as the run and
imports little: no pydantic, no HTTP, no hashes. A watch that raises is disabled, and an alarm reports it.
"""
