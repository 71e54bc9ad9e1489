"""Images in host memory, their splits, and views that replay exactly."""
