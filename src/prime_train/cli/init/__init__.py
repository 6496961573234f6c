"""`prime-train init`: a config for a model and a machine, from flags or from a conversation; and a workflow.

`answers.py` turns the flags into wishes, and looks at what they name: model, environment, records, GPUs, trainers.
`conversation.py` asks for the flags that are missing; only it imports questionary. `choose/` decides, `preview.py`
judges and shows what it chose, or what a command stands for.
"""
