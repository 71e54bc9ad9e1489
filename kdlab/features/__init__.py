"""Losses between inner outputs of teacher and student, added to the loss of their logits."""
