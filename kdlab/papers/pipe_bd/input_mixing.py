"""Which inputs student blocks get while they are trained (beyond the paper).

In the paper a student block always gets what its teacher's blocks put out, so it never sees the
errors that the student's blocks before it make. Here some rows are the student's own instead,
more of them as training goes on: as scheduled sampling does for sequences (Bengio et al. 2015,
arXiv:1506.03099). What a row gets depends on seed, step and block alone, so that every plan trains
the same student.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MixingSchedule:
    """A share of the rows that rises in a straight line."""

    most: float  # at the end
    after: float  # of all steps, before the first such row

    def share(self, step: int, of_steps: int) -> float:
        """How much of this step's rows get the student's inputs; steps count over all epochs."""
        done = (step + 1) / max(1, of_steps)
        if done <= self.after:
            return 0.0
        return self.most * min(1.0, (done - self.after) / (1 - self.after))
