"""What is known of a model, and the verdict on it: `verify-model`."""
