"""What runs beside the loop: services, alerts, packing, backups.

A service is ready when /health and a completion of one token have answered, and the process that answers belongs to the
run. When any process exits, the attempt ends; after a trainer's exit the services get SIGTERM. Before the next attempt
a service's GPU memory must be free again. Packing has nice 19 and idle I/O; the trainer may delete a checkpoint
meanwhile. A bucket that fails for 15 min is an alarm.
"""
