"""Rules on the model and the tokenizer."""
