"""What is shown of a run.

On a resume the fold drops evaluations after the checkpoint, as the report does; the state keeps the last 64. Status and
report take the newest complete checkpoint from the disk, and call a run without a supervisor dead.
"""
