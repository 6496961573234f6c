"""Evidence of an attempt, and the cause of its end.

The cause is that of the alarm that ended the attempt, else the trainer's own report together with the root cause in
every log. A lost machine or a killed trainer comes before the broken connection that another rank reported earlier.
"""
