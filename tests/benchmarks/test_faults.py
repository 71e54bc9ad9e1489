"""The bench of faults reads what a reader's journal has."""

from types import SimpleNamespace

from benchmarks import faults
from kdlab.cluster.coordination.recording import Recorded
from kdlab.events.teachers import TeacherLost
from kdlab.papers.edl_dist.reader_instructions import EmitEvent


class Machine:
    def on_silence(self, time):
        return [EmitEvent(event=TeacherLost(teacher="t", why="silent", resent=1))]

    def on_tick(self, time):
        return []


def test_a_loss_is_read_from_the_journal(tmp_path):
    """It looked for an instruction that had been renamed: no loss was ever seen."""
    log = tmp_path / "reader.log"
    machine = Recorded(Machine(), log.with_suffix(".jsonl")).machine
    machine.on_silence(2.5)
    machine.on_tick(time=3.0)
    lost, tick = faults._recorded(SimpleNamespace(log=log))
    assert (lost.time, lost.loses) == (2.5, True)
    assert (tick.time, tick.loses) == (3.0, False)
