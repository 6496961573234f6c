"""Chats to tokens: templates, tokenizers, and the rows of supervised fine-tuning."""
