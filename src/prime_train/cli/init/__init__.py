"""`prime-train init`: a config for a model and a machine, from flags or from a conversation; and a workflow.

`answers.py` turns flags into wishes, and looks at what they name: model, GPUs, records, disk. `conversation.py` asks
for the flags that are missing; only it imports questionary. `choose/` decides, `preview.py` judges and shows it.
"""
