"""A teacher's process: its server, inference, what it proves of its data; emulated teachers."""
