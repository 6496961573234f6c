"""What spot interruptions cost a run, and how often it should save.

The formulas are in docs/monitor.md. The tests simulate whole lives attempt by attempt and compare them with these
formulas, and with the limit of lost machines.
"""
