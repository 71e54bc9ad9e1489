"""Sets of image files that are decoded when a view is asked for, not before."""
