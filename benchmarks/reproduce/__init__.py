"""`kdlab reproduce`: the papers' tables and figures, published, simulated and measured."""
