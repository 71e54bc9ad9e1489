"""EDL-Dist: one student, with soft labels from anywhere, in one process or several ranks."""
