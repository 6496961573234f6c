"""Watches the disks that a run writes to."""
