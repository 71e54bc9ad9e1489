"""One worker: the state with which it continues when its process comes back within a round."""

from local_models import Case, apart

from kdlab.soft_labels.none import NoTeacherSource
from kdlab.train.aggregation.muloco import MuLoCo


def test_a_worker_that_returns_while_combining_has_its_newest_error_feedback(
    digits, tmp_path
):
    """Its checkpoint is of its last step: before the delta was quantised, with some loss."""
    spec = MuLoCo(tau=2)
    table = spec.timetable(4, 1)
    round_ = table.rounds[0]
    case = Case(digits, tmp_path, spec, table, 2, checkpoint_every_steps=1)
    workers = [case.make(k) for k in range(2)]
    trained = [w.train(round_, [], NoTeacherSource(w.job.samples)) for w in workers]
    files = [work.model for work in trained]

    returned = case.make(0)
    returned.restore(0, round_.train_steps)
    assert (returned.round, returned.round_steps) == (0, round_.train_steps)
    assert not any(name.startswith("own.lost.") for name in returned.memory)
    workers[0].combine(round_, files)
    returned.combine(round_, files)

    assert any(name.startswith("own.lost.") for name in returned.memory)
    assert apart(workers[0].memory, returned.memory) == 0
