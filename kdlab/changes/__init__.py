"""Changes to a running training: requests, tunables, and their queue."""
