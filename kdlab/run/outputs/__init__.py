"""Products of a run: exported student, model card, examination, comparison, late tracking."""
