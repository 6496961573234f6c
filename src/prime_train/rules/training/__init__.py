"""Rules on batch, optimizer, precision, layout, memory and checkpoints."""
