"""Training loops. They are handed a SoftLabelSource and report through `events`."""
