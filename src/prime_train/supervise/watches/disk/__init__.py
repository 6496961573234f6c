"""Watches the disks that a run writes to.

It deletes only what newer complete checkpoints have superseded, oldest first, and the remains of dead attempts. The
child that carries out a plan judges it again first. Each deletion is written as `SpaceFreed`.
"""
