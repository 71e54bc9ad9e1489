"""What people read: progress, tables, model cards."""
