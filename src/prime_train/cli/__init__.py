"""The command line, a file for each command. Never imports torch; what needs torch runs in a child.

If a `lint PATH...` without options raises an error, the command runs again through typer and reports the error; a
command that was to print JSON gets a JSON document, too. The words that other programs use for a command (`resume`,
`kill`, `train`) are answered with the command of this one.
"""
