"""A device keeps the blocks that it computes, and no others."""

import pytest
from torch import nn

from kdlab.methods.blockwise.device_stages import keep_own_blocks
from kdlab.methods.blockwise.pairs import BlockPair, relative_mse


class Placed(nn.Module):
    """Says where it was moved to; there is no GPU here to look at."""

    where = "cuda"

    def to(self, where):
        self.where = where
        return self


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_not_computed_leaves(whole):
    pairs = [BlockPair(Placed(), Placed(), relative_mse) for _ in range(5)]
    keep_own_blocks(pairs, students={2, 3}, teachers={0, 1, 2, 3}, whole_student=whole)
    assert [pair.teacher.where for pair in pairs] == ["cuda"] * 4 + ["cpu"]
    others = "cuda" if whole else "cpu"
    assert [pair.student.where for pair in pairs] == [
        others,
        others,
        "cuda",
        "cuda",
        others,
    ]
