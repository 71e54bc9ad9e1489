"""Oracle O-11: linear below n, flat above; bounded volume; nothing lost under kills."""

import json

import pytest

from kdlab.cli import main
from kdlab.run.simulations import simulate


def figures(name, *overrides):
    report, _ = simulate(f"edl_dist/{name}", overrides)
    assert all(f["holds"] is not False for f in report["figures"])
    return {f["name"]: f["value"] for f in report["figures"]}


def test_throughput_is_linear_below_n_and_flat_above():
    found = figures("fig5a")
    rates = [found[f"predicted/{n} teachers"] for n in range(1, 11)]
    for n in range(1, 5):
        assert rates[n - 1] == pytest.approx(n * rates[0], rel=0.02)
    for n in range(5, 11):
        assert rates[n - 1] == pytest.approx(228.5, rel=0.01)
    assert found["teachers_used/10 teachers"] == 5


@pytest.mark.parametrize("table", ["table2", "table3"])
def test_the_tables_of_unlike_machines_are_predicted(table):
    found = figures(table)
    ratios = [v for k, v in found.items() if k.startswith("predicted_over_published/")]
    assert len(ratios) >= 3
    assert all(abs(ratio - 1) < 0.03 for ratio in ratios)


def test_table_3_uses_13_of_16_cores_as_n_says():
    assert figures("table3")["teachers_used/16 cores"] == 13


def test_the_papers_policy_takes_more_teachers_than_the_guarded_one():
    paper = figures("policies", "policy=paper")
    guarded = figures("policies", "policy=guarded")
    name = "predicted/40 free"
    assert paper[name] == pytest.approx(guarded[name], rel=0.02)
    assert paper["teachers_used/40 free"] > guarded["teachers_used/40 free"]


def test_kills_lose_and_repeat_nothing():
    found = figures("scale614x32", "steps=60", "kill_share=0.5")
    assert found["samples_lost/614 teachers"] == found["samples_repeated/614 teachers"] == 0


def test_the_command_ends_with_one_json_object(capsys):
    assert main(["simulate", "edl_dist/table3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.strip().split("\n")[-1])
    assert report["name"] == "edl_dist/table3"
    assert {f["name"] for f in report["figures"]} >= {
        "predicted/12 cores",
        "published/12 cores",
    }


def test_an_unknown_simulation_names_the_nearest(capsys):
    assert main(["simulate", "edl_dist/table9"]) == 2
    assert "table3" in capsys.readouterr().err
