"""Runs on other machines, of a cloud or a scheduler: how a run gets there, and how it is judged from outside.

Plans and verdicts are pure; one module of each part starts the external command. A job of SkyPilot has no run directory
here, so its status is what the queue shows; that of Slurm is joined with the status of its directory.
"""
