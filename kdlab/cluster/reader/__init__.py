"""The DistilReader's process: wires to teachers, the ring of shared memory to the trainer."""
