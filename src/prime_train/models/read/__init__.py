"""What is read of a model: files, config, template, tokenizer, packages."""
