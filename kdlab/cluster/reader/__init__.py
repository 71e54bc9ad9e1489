"""The DistilReader's process: connections to teachers, shared memory to the trainer."""
