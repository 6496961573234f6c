"""Carries messages between the agents of machines and a controller: four verbs, two back ends, one test suite.

`base.py` has the verbs publish, subscribe, request and kv, and buckets of large objects. `local.py` keeps messages in a
folder of this machine and needs nothing. `nats.py` needs the extra `control`, and `nats_server.py` starts a server for
it. docs/bus.md has the subjects and who may use them.

A time-out means "not known": the message may arrive later. So each message has an id, a receiver acts once per id, and
a sender repeats with the same id. A kept message stays in the store until its named reader acknowledges it; where the
store is full it is refused, and the sender still has it. Kept messages and keys are read by position, because a
consumer in JetStream hears nothing for up to 18 s after its server restarts. Objects are written and read by the
controller alone: an agent sends what is large in kept messages.
"""
