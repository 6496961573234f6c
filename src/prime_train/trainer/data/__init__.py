"""Text to packed micro-batches."""
