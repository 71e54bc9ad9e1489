"""The table of a plan says what each stage costs, tasks of the baselines included."""

import pytest

from kdlab.papers.pipe_bd.block_cost import Block, DeviceLink, Profile, StageCosts
from kdlab.papers.pipe_bd.execution_plan import programme
from kdlab.report.plan_table import plan_table


def costs():
    block = Block(
        teacher_s={2: 0.002, 4: 0.004},
        student_s={2: 0.006, 4: 0.012},
        gradient_bytes=1e6,
        fixed_bytes=3e6,
        row_bytes=1e6,
        norms=2,
    )
    link = DeviceLink(bytes_per_s=1e9, latency_s=1e-4)
    return StageCosts(
        Profile(types={"cpu": [block] * 3}, devices=("cpu",) * 2, link=link), 4
    )


def rows(name):
    plan = programme(name, costs())
    lines = plan_table(plan, costs(), ["a", "b"]).splitlines()
    return plan, [line.split() for line in lines[2:-2]], lines


def test_a_pipeline_has_a_line_for_each_stage():
    plan, stages, lines = rows("tr")
    assert len(stages) == 2
    slowest = max(float(line[-2]) for line in stages)
    assert slowest == pytest.approx(1e3 * plan.predicted_s, abs=0.01)
    assert "all work shared evenly: 24.0 ms" in lines[-2]
    assert lines[-1] == "student blocks end with: a, b"


def test_a_baseline_has_a_line_for_each_task_and_their_sum_is_its_step():
    plan, tasks, _ = rows("dp")
    assert len(tasks) == 3
    # Two rows each: the teacher's blocks up to it, the student's, gradients and two norms.
    reduce = 1e3 * (2 * (1e-4 + 0.5e-3) + 2 * 2 * 2e-4)
    for block, line in enumerate(tasks):
        teacher, student, shared, exposed, step, _ = map(float, line[-6:])
        assert (teacher, student, exposed) == (2 * (block + 1), 6, 0)
        assert shared == pytest.approx(reduce, abs=0.01)
        assert step == pytest.approx(teacher + student + reduce, abs=0.01)
    total = sum(float(line[-2]) for line in tasks)
    assert total == pytest.approx(1e3 * plan.predicted_s, abs=0.03)
