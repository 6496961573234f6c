"""A run on several machines: machine 0 decides, and the others follow it over one connection each.

Machine 0 has the run directory and the supervisor. Its attempt has one more process, the relay, which stands for the
trainers of the other machines: it starts them, copies their output, and exits when one of them fails.
"""
