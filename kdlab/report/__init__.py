"""Output for people: progress, tables, pages, model cards."""
