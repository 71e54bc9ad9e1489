"""The commands, one file each: its name, what it is about, its options, and what it does.

What a command needs is imported where it is done, so that `kdlab --help` loads none of it.
"""
