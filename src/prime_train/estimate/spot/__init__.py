"""What spot interruptions cost a run, and how often it should save.

The formulas are in docs/monitor.md. tests/estimate/spot/lives.py simulates whole lives attempt by attempt and compares
them with these formulas, and with the limit of lost machines.
"""
