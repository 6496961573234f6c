"""Jobs on Slurm, which save before their time limit and requeue themselves."""
