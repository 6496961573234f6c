"""The commands for several runs at once and for runs that train: the page, the table, changes and commands."""
