"""The model: blocks, attention, experts, adapters, and its names in files."""
