"""A device keeps the blocks that it computes, and no others."""

import pytest
from torch import nn

from kdlab.methods.blockwise.device_stages import keep_own_blocks
from kdlab.methods.blockwise.pairs import BlockPair, relative_mse


class Placed(nn.Module):
    """A module that records where it was moved to, since this test has no GPU."""

    where = "cuda"

    def to(self, where):
        self.where = where
        return self


@pytest.mark.parametrize("whole_student", [False, True])
def test_what_is_not_computed_leaves(whole_student):
    pairs = [BlockPair(Placed(), Placed(), relative_mse) for _ in range(5)]
    keep_own_blocks(
        pairs, students={2, 3}, teachers={0, 1, 2, 3}, whole_student=whole_student
    )
    assert [pair.teacher.where for pair in pairs] == ["cuda"] * 4 + ["cpu"]
    rest = "cuda" if whole_student else "cpu"
    assert [pair.student.where for pair in pairs] == [rest, rest, "cuda", "cuda", rest]
