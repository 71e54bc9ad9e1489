"""What notebooks show of runs: live, static, and side by side."""
