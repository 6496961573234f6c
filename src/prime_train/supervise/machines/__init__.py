"""A run on several machines: machine 0 decides, and the others follow it over one connection each.

Machine 0 has the run directory and the supervisor. An attempt there has one more process, the relay, which stands for
the trainers of the other machines: it starts them, copies their output, and exits when one of them fails. So loop, fold
and policy see no difference. The relay writes only starts, failures and unreadable checkpoints on the other machines as
events; rank 0 writes the rest. A sign of life is sent every 5 s; after 60 s without one a machine counts as lost. Each
machine has its own torchrun, and global ranks are made from local ones, so torchrun listens nowhere: only the relay and
rank 0's store listen on an address that other machines reach. `--detach` and an engine, which is on loopback, are
refused. docs/machines.md is for users.
"""
