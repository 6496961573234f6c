"""The mirror at W&B. It continues one run over machines, whose id is in WANDB_RUN_ID or SKYPILOT_TASK_ID."""
