"""What runs beside the loop: services, alerts, packing, backups.

A service is ready when its health and a completion of one token have answered, and the process that answers belongs to
the run. The exit of any process ends the attempt; after a trainer's exit the services get SIGTERM. Before the next
attempt the GPU memory of a service must be free again. Packing has nice 19 and idle I/O; the trainer may delete a
checkpoint meanwhile. A bucket that fails for 15 min is an alarm.
"""
