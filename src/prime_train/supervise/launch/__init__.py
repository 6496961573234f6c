"""What is started, as values: the Program protocol, launches, their environment, their GPUs, their run directory."""
