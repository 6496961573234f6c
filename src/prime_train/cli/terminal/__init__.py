"""What every command shares: options, output, masked streams, crash files.

What a command prints fits its terminal; a pipe gets whole lines. Standard error is fitted where secrets are masked,
standard output by each command, because some results are files or JSON.
"""
