"""Extensions of EDL-Dist beyond the paper; each header says what the paper has instead."""
