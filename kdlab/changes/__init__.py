"""Changing a training while it goes on: orders, and what a loop makes of them."""
