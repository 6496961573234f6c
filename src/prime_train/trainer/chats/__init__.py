"""Chats to tokens: templates, tokenizers, and the rows of supervised fine-tuning.

An answer of the model keeps the tokens that it wrote, so fine-tuning and rollouts see the same sequences. Text that
looks like a control token stays text. The labels equal the mask of transformers' `{% generation %}` templates, which
the tests compare. A template is known only by what it renders.
"""
