"""Blockwise distillation (Pipe-BD): pairs of blocks, and the engine that trains them."""
