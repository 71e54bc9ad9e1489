"""An error in carrying out an instruction is reported before anything else is handed over."""

import asyncio

import pytest

from kdlab.cluster.reader.ring import ReaderDefect
from kdlab.cluster.reader.student_reader import StudentReader
from kdlab.papers.edl_dist.reader_instructions import EndCheck


class Broken(StudentReader):
    """Its views cannot be read any more."""

    def __init__(self):
        self.background, self.defect, self.failures = set(), None, []

    def execute(self, instruction):
        raise OSError("the images are gone")

    def fail(self, failure):
        self.failures.append(failure)


def test_an_error_of_a_hand_over_is_said_at_once_and_once(capsys):
    reader = Broken()

    async def request():
        with pytest.raises(OSError, match="the images are gone"):
            reader.do([EndCheck(None)])
        # Now: another answer may be handled before this task counts as done.
        assert reader.failures == [ReaderDefect("OSError('the images are gone')")]
        reader.do([EndCheck(None)])

    async def carry_out():
        reader.spawn(request())
        while reader.background:
            await asyncio.sleep(0)

    asyncio.run(carry_out())
    assert len(reader.failures) == 2  # of the two hand-overs; the task repeats none
    assert "the images are gone" in capsys.readouterr().err
