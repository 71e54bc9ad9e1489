"""Sweeps: Optuna asks, kdlab's runs answer. `search` loads one, `attach_sweep` finds one."""

from kdlab.tuning.handle import CheckedSweep, Sweep, attach_sweep, search

__all__ = ["CheckedSweep", "Sweep", "attach_sweep", "search"]
