"""What spot interruptions cost a run, and how often it should save."""
