"""Connects a run with a controller over the bus, in a process of its own: publishes events, receives commands.

The agent reads the files that the run writes and writes requests as any command does, so it can never slow or stop the
training; it also yields the processor to it. What it sent is in the folder `bus` of the run directory. docs/bus.md has
the subjects.
"""
