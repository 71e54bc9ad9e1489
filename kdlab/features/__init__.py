"""Losses between inner outputs of teacher and student, beside the soft loss of their logits."""
