"""Rules on the machine and what is installed on it."""
