"""A run on several machines: machine 0 decides, and the others follow it over a bus.

Machine 0 has the run directory and the supervisor. An attempt there has one more process, the relay, which stands for
the trainers of the other machines: it starts them, copies their output, and exits when one of them fails. So loop, fold
and policy see no difference. The relay writes only starts, failures and unreadable checkpoints on the other machines as
events; rank 0 writes the rest. It also starts the server of the bus, for one attempt alone; while the run is paused, a
child of the supervisor has that server, so that the others wait. A sign of life is sent
every second; a machine is lost after 60 s without one, or 5 s after its connection has ended. Each machine has its own
torchrun, and global ranks are made from local ones, so torchrun listens nowhere: only the server and rank 0's store
listen on an address that other machines reach, and none starts there without a secret (`core/machine_secret.py`).
With replicas no rank knows of another machine: each machine has a launcher of its own replicas. The relay carries their
signs to machine 0, and the address of the lighthouse to them (`replica_places`). A lost machine then joins again.
`--detach` and an engine, which is on loopback, are refused.
docs/machines.md is for users.
"""
