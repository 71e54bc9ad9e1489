"""The commands: what each takes, and what it does.

What a command needs is imported where it is done, so that `kdlab --help` loads none of it.
"""
