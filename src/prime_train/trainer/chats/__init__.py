"""Chats to tokens: templates, tokenizers, and the rows for supervised fine-tuning.

An answer keeps the tokens that the model wrote, so fine-tuning and rollouts see the same sequences. Text that looks
like a control token stays text. The labels equal the mask of transformers' `{% generation %}` templates, which the
tests compare. A template is known only by what it renders.
"""
