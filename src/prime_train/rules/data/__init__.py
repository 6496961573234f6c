"""Rules on data, environments and evaluation."""
