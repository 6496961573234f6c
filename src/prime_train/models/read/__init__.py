"""What is read of a model: files, config, template, tokenizer, packages, each in a child with a deadline."""
