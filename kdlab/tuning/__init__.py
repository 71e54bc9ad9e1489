"""Sweeps: Optuna suggests, kdlab's runs evaluate. `search` loads one, `attach_sweep` finds one."""

from kdlab.tuning.checked import CheckedSweep, search
from kdlab.tuning.handle import Sweep, attach_sweep

__all__ = ["CheckedSweep", "Sweep", "attach_sweep", "search"]
