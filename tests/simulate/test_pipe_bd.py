"""Pipe-BD on a simulated clock: the clock and the costs agree, and Fig. 4 has its shape."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from kdlab.config.check import construct
from kdlab.config.load import compose_card
from kdlab.errors import BadInput
from kdlab.papers.pipe_bd.block_cost import Block, DeviceLink, Profile, StageCosts
from kdlab.papers.pipe_bd.hybrid_plan import best_plan, relaying
from kdlab.papers.pipe_bd.stages import pipeline
from kdlab.run.simulations import simulate
from kdlab.simulate.pipe_bd import PipeBd, Relay, simulate_case


def even(teacher, student, output=0.0, gradient=0.0):
    rows = {24: 1.0, 12: 0.5, 8: 1 / 3, 1: 1 / 24}
    return Block(
        teacher_s={r: teacher * s for r, s in rows.items()},
        student_s={r: student * s for r, s in rows.items()},
        output_bytes=output,
        gradient_bytes=gradient,
    )


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 1), st.floats(0.1, 3)), min_size=2, max_size=6),
    st.integers(2, 4),
    st.booleans(),
    st.sampled_from([1e6, 200.0, 40.0]),  # up to 5 s for a batch's output, more than a step
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([(0.0, 1.0), (2.0, 0.0), (2.0, 1.0), (20.0, 1.0)]),
    st.booleans(),
)
def test_the_clock_says_what_the_costs_say(
    times, devices, decoupled, rate, overlap, loading, unlike
):
    """Steps are bound by computing, by a link or by loading; devices are alike or not."""
    types = {"a": [even(*t, output=8.0, gradient=20.0) for t in times]}
    if unlike:
        types["b"] = [even(2 * t, 1.5 * s, output=8.0, gradient=20.0) for t, s in times]
    of = [sorted(types)[k % len(types)] for k in range(devices)]
    profile = Profile(
        types=types,
        devices=of,
        link=DeviceLink(bytes_per_s=rate, overlap=overlap),
        load_s=loading[0],
        load_overlap=loading[1],
    )
    costs = StageCosts(profile, 24)
    plan = best_plan(costs, decoupled=decoupled).plan
    widths = [len(stage.devices) for stage in plan.stages]
    if not decoupled and widths != sorted(widths):
        return  # the port of a stage narrower than the one before is not in the costs then
    simulated = Relay(costs, plan, steps=90).run().step_s
    assert simulated == pytest.approx(costs.step_s(plan), rel=0.03)


def test_a_slow_link_holds_the_pipeline_back_and_no_row_is_lost_on_it():
    profile = Profile(
        types={"a": [even(1.0, 1.0, output=1e6), even(1.0, 1.0)]},
        devices=["a", "a"],
        link=DeviceLink(bytes_per_s=24e6 / 5),  # five seconds for each batch
    )
    costs = StageCosts(profile, 24)
    plan = pipeline(24, [1, 2], [1, 1])
    relay = Relay(costs, plan, steps=30).run()
    assert relay.step_s == pytest.approx(5.0, rel=0.05)
    first = [span.end for span in relay.spans if span.device == 0 and span.part == "update"]
    last = [span.end for span in relay.spans if span.device == 1 and span.part == "update"]
    # The first stage runs ahead by its buffers, not by more.
    assert max(b - a for a, b in zip(first, last, strict=True)) < 4 * 5.0


def test_decoupling_hides_the_relay():
    costs = StageCosts(Profile(types={"a": [even(1.0, 2.0)] * 3}, devices=["a"] * 3), 24)
    plan = relaying(costs).plan
    assert Relay(costs, plan).run().step_s == pytest.approx(3.0)
    barrier = Relay(costs, replace(plan, decoupled=False)).run()
    assert barrier.step_s == pytest.approx(5.0)
    idle = [span for span in barrier.spans if span.part == "barrier"]
    assert sum(span.end - span.begin for span in idle if span.device == 0) > 0


def test_figure_4_has_its_shape():
    report, table = simulate("pipe_bd/shapes")
    figures = {f["name"]: f["value"] for f in report["figures"]}
    for case in ("blocks alike", "heavy first block"):
        over = {v: figures[f"over_dp/{v}/{case}"] for v in ("TR", "TR+DPU", "TR+DPU+AHD")}
        assert 1 < over["TR"] <= over["TR+DPU"] <= over["TR+DPU+AHD"]
        assert figures[f"of_ideal/TR+DPU+AHD/{case}"] <= 1.0
    # Where block 0 dominates DPU alone helps little and AHD a lot (section VII-A).
    heavy = {
        v: figures[f"over_dp/{v}/heavy first block"] for v in ("TR", "TR+DPU", "TR+DPU+AHD")
    }
    assert heavy["TR+DPU"] / heavy["TR"] < 1.5
    assert heavy["TR+DPU+AHD"] / heavy["TR+DPU"] > 1.4
    alike = {v: figures[f"over_dp/{v}/blocks alike"] for v in ("LS", "TR+DPU")}
    assert alike["LS"] > 1
    assert "Plans of TR+DPU+AHD" in table
    assert "heavy first block: blocks 0-1 on 0-2, 2-5 on 3" in table


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        (
            "published={pipe_bd: 1, foo: 2}",
            "published: has foo; it takes dp, ls and pipe_bd",
        ),
        ("published={pipe_bd: 0, dp: 1}", "published.pipe_bd: is 0"),
        ("published={pipe_bd: 1, dp: .nan}", "published.dp: is nan"),
        ("speeds={a6000: 0}", "speeds.a6000: is 0"),
    ],
)
def test_numbers_by_name_have_ranges_too(override, fault):
    with pytest.raises(BadInput, match=re.escape(fault)):
        simulate("pipe_bd/fig5", [f"cases.0.{override}"])


def values(name):
    report, table = simulate(name)
    return {f["name"]: f["value"] for f in report["figures"]}, table


def test_table_2_is_predicted_where_a_profile_has_its_baselines():
    """The prediction is a point within the range of costs that its students may have."""
    figures, _ = values("pipe_bd/table2")
    for case, published in (("NAS CIFAR-10", 3.081), ("VGG-16 CIFAR-10", 7.321)):
        where = f"pipe_bd_over_dp/{case}"
        low, high = figures[f"lowest/{where}"], figures[f"highest/{where}"]
        assert low < figures[f"predicted/{where}"] < high
        assert low < published < high
    of_card = construct(PipeBd, compose_card("simulations/pipe_bd/table2"))
    for fitted in (one for case in of_card.cases for one in case.fitted()):
        times, paper = simulate_case(of_card, fitted).seconds, fitted.published
        ratio = paper["dp"] / paper["ls"]
        assert times["DP"] / times["LS"] == pytest.approx(ratio, rel=0.01)

    def off(case, over):
        return figures[f"predicted_over_published/pipe_bd_over_{over}/{case}"] - 1

    for case in ("NAS CIFAR-10", "VGG-16 CIFAR-10"):
        assert abs(off(case, "dp")) < 0.05
        assert abs(off(case, "ls")) < 0.05
    assert abs(off("NAS ImageNet", "dp")) < 0.05
    # What is not reached: published LS is slower than any packing has it.
    assert off("NAS ImageNet", "ls") < -0.3
    assert off("VGG-16 ImageNet", "ls") < -0.3


def test_figure_5_has_the_plan_of_the_a6000_and_not_that_of_the_2080ti():
    _, table = values("pipe_bd/fig5")
    assert "A6000: blocks 0-2 on 0-2, 3-5 on 3" in table
    assert "2080Ti: blocks 0-2 on 0-2, 3-5 on 3" in table  # published: 0 on 0-1, 1-2 on 2


def test_figure_6_small_batches_gain_more():
    figures, _ = values("pipe_bd/fig6")
    gains = [figures[f"over_dp/TR+DPU+AHD/batch {b}"] for b in (128, 256, 384, 512)]
    assert gains == sorted(gains, reverse=True)
    assert min(gains) > 2


@pytest.mark.long
def test_from_4_to_64_devices_a_step_gets_shorter_until_one_block_is_left():
    figures, _ = values("pipe_bd/scale64")
    for link in ("PCIe", "network"):
        steps = [figures[f"step_ms/TR+DPU+AHD/{n} over {link}"] for n in (4, 8, 16, 32, 64)]
        assert steps == sorted(steps, reverse=True)
    for n in (4, 8, 16, 32, 64):
        near, far = (
            figures[f"step_ms/TR+DPU+AHD/{n} over {link}"] for link in ("PCIe", "network")
        )
        assert near <= far * 1.001
