"""Runs on other machines, of a cloud or a scheduler: how a run gets there, and how it is judged from outside.

Plans and verdicts are pure; one module in each part starts the external command. A SkyPilot job has no run directory
here, so the queue gives the status; a job on Slurm also has the status in the run directory.
"""
