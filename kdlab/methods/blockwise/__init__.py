"""Pipe-BD: each block of the student learns from its block of the teacher, in a pipeline."""
