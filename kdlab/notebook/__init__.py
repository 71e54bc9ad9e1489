"""Views of runs in notebooks: live, static and side by side."""
