"""The papers' tables: cards are valid, promises hold, and simulations repeat their numbers."""

import json
from pathlib import Path

import pytest
from runs_here import after
from tests_support import TIER

from benchmarks.reproduce import result as results
from benchmarks.reproduce.bench import Bench
from benchmarks.reproduce.candidates import best_candidates
from benchmarks.reproduce.command import (
    as_markdown,
    card,
    kept_result,
    kept_table,
    known,
    reproduce,
)
from benchmarks.reproduce.experiment import Trained
from benchmarks.reproduce.freshness import changed_since
from benchmarks.reproduce.over_time import shares_of_time
from benchmarks.reproduce.shares import Shares, Teachers
from benchmarks.reproduce.table import MeasuredRow, Row, printed
from kdlab.codec import MessageError
from kdlab.errors import BadInput, NotFoundError, RunStopped, SpecError
from kdlab.run.handle.run import attach

NAMES = sorted(known())
# These simulate hundreds of teachers: 20 s and a minute.
LONG = {
    "edl_dist/fig6": (pytest.mark.slow, pytest.mark.nightly),
    "edl_dist/table5": (pytest.mark.slow, pytest.mark.nightly),
}
DEAR = ("ec_dnn/fig5", "edl_dist/table2", "edl_dist/table3", "pipe_bd/fig4")
SECONDS = pytest.mark.slow("two to four seconds, twice")
SIMULATED = [
    pytest.param(name, marks=LONG.get(name, SECONDS if name in DEAR else ()))
    for name in NAMES
    if card(name)[1].simulation
]


@pytest.mark.parametrize("name", SIMULATED)
@pytest.mark.long
def test_what_is_promised_of_a_simulation_holds(name, elsewhere):
    (result,) = reproduce(name, measures=False)
    asked = [row for row in result.rows if row.spec.simulated]
    assert asked
    assert not [row.spec.simulated for row in asked if row.simulated is None]
    failed = [row.spec.row for row in result.rows if row.facts()["holds"] is False]
    assert not failed
    assert_kept_as_simulated(name, result)
    picture = elsewhere / "reproductions" / name / "figure.png"
    assert picture.stat().st_size > 5000
    rows = json.loads((picture.parent / "result.json").read_text())["rows"]
    if name in LONG or TIER == "quick":  # once
        return
    again = [row.facts() for row in reproduce(name, measures=False)[0].rows]
    assert rows == again  # every time the same


def assert_kept_as_simulated(name, result):
    """Check kept numbers; `kdlab reproduce NAME --simulate-only --keep` renews them."""
    if name not in results.names():
        return
    now = {(row.spec.row, row.spec.quantity): row.facts() for row in result.rows}
    for row in kept_result(name)["rows"]:
        fresh = now[row["row"], row["quantity"]]["simulated"]
        if fresh is None or row["simulated"] is None:
            assert row["simulated"] == fresh, row
        else:
            assert row["simulated"] == pytest.approx(fresh, rel=1e-4), row


def test_only_predictions_count():
    """Rows that promise 5 %: those of EDL-Dist Tables 2 and 3, and one of Pipe-BD's Table II."""
    for name, count, within in (
        ("edl_dist/table2", 5, 5),
        ("edl_dist/table3", 2, 5),
        ("pipe_bd/table2", 1, 5),
    ):
        promised = [row for row in card(name)[1].rows if row.within_pct]
        assert len(promised) == count, name
        assert {row.within_pct for row in promised} == {within}
        assert {row.marked for row in promised} == {"predicted"}
    with pytest.raises(SpecError, match="promised of a number that is fitted"):
        Row(row="a", quantity="b", simulated="c", marked="fitted", within_pct=5)
    with pytest.raises(SpecError, match="must say what the simulated number is"):
        Row(row="a", quantity="b", simulated="c")


def test_what_cannot_be_is_found_before_anything_is_measured():
    for row, message in (
        ({"goal": "> 2"}, "must be such as"),
        ({"goal": "2"}, "must be such as"),
    ):
        with pytest.raises(SpecError, match=message):
            Row(row="a", quantity="b", **row)
    with pytest.raises(SpecError, match="has none"):
        Bench(name="peers", only=("served",))
    with pytest.raises(SpecError, match="has no effect"):
        Bench(name="pipe_bd", images=("x.zip",))
    with pytest.raises(SpecError, match="has no effect"):
        Bench(name="peers", budget_steps=10)
    with pytest.raises(SpecError, match="set one of them"):
        Bench(name="ec_dnn", budget_s=1.0, budget_steps=10)
    with pytest.raises(SpecError, match="are not there"):
        Bench(name="ec_dnn", images=("x.zip",))


def row_facts(row, simulated, measured):
    return MeasuredRow(row, simulated, measured).facts()


def test_the_median_of_rates_and_the_mean_of_accuracies_count():
    rate = Row(row="a", quantity="ratio", measured="m", goal=">= 0.97")
    assert row_facts(rate, None, (0.90, 0.98, 1.0))["holds"] is True
    gain = Row(row="a", quantity="gained, points", measured="m", goal=">= 0")
    assert row_facts(gain, None, (-3.0, 0.5, 1.0))["holds"] is False


def test_a_goal_of_seeds_holds_for_the_worst_of_them():
    gain = Row(row="a", quantity="gained, points", measured="m", goal=">= 0")
    assert row_facts(gain, None, (4.7, 1.9, -0.8))["holds"] is False
    assert row_facts(gain, None, (4.7, 1.9, 0.8))["holds"] is True
    error = Row(row="a", quantity="error, %", measured="m", goal="<= 5")
    assert row_facts(error, None, (4.0, 4.0, 5.5))["holds"] is False
    rate = Row(row="a", quantity="ratio", measured="m", goal=">= 1")
    assert row_facts(rate, None, (0.9, 1.1, 1.2))["holds"] is True  # rounds, not seeds


def test_off_and_holds():
    row = Row(
        row="a", quantity="b", published=10.0, simulated="s", marked="predicted",
        within_pct=5, measured="m", goal=">= 2",
    )  # fmt: skip
    assert row_facts(row, 10.4, (3.0,))["off_pct"] == pytest.approx(4)
    assert row_facts(row, 10.4, (3.0,))["holds"] is True
    assert row_facts(row, 10.6, (3.0,))["holds"] is False
    assert row_facts(row, 10.4, (1.0, 2.0))["holds"] is False
    assert row_facts(row, 10.4, ())["holds"] is True
    fitted = Row(row="a", quantity="b", published=10.0, simulated="s", marked="fitted")
    assert row_facts(fitted, 10.0, ())["off_pct"] is None  # no evidence, however near
    assert row_facts(fitted, 10.0, ())["holds"] is None


def test_shares_have_the_names_of_their_rows():
    for name in NAMES:
        spec = card(name)[1]
        if isinstance(spec.measurement, Shares):
            asked = {row.measured for row in spec.rows if row.measured}
            assert asked == set(spec.measurement.cases)


@pytest.mark.parametrize("name", sorted(results.names()))
def test_a_kept_result_has_the_numbers_of_its_claim(name):
    facts, spec = kept_result(name), card(name)[1]
    assert facts["command"].startswith(f"kdlab reproduce {name}")
    assert facts["machine"]["cores"] >= 1
    assert "torch" in facts["versions"]
    older = changed_since(facts)  # its claim may have gained rows since
    for row, asked in zip(facts["rows"], spec.rows, strict=True):
        nothing = row["measured"] is None and not row["undefined"]
        assert nothing == (asked.measured is None) or (nothing and older), asked
        assert (row["simulated"] is None) == (asked.simulated is None), asked
    assert "| --- |" in kept_table(name)


def test_the_tables_are_of_the_claims_and_say_nothing_of_whoever_measured():
    texts = [path.read_text() for path in sorted(results.HERE.iterdir())]
    of_rows = {line["name"] for line in results._read(results.HERE / "rows.csv")}
    # Rows of benches are promises that no table has.
    assert {name for name in of_rows if not name.startswith("bench/")} == set(NAMES)
    assert not any(".zip" in text for text in texts)  # paths of a user's images
    claims = results.HERE.with_name("claims").rglob("*.yaml")
    lines = sum(text.count("\n") for text in [*texts, *(c.read_text() for c in claims)])
    assert lines <= 1880, "what is claimed and what came of it, a line a number"


def test_a_row_that_was_left_out_is_kept_without_numbers(tmp_path, monkeypatch):
    """A row without numbers, as a new one of a claim is, does not lose those of other rows."""
    name = "edl_dist/table3"
    facts, rows = kept_result(name), card(name)[1].rows
    first = facts["rows"][0]
    results.keep(tmp_path, facts | {"rows": facts["rows"][1:]}, rows)
    numbers = results.found_in(tmp_path, name)
    assert set(numbers[first["row"], first["quantity"]].values()) == {None}
    assert len(numbers) == len(rows)
    monkeypatch.setattr(results, "found_in", lambda folder, of: {})
    assert {row["measured"] for row in kept_result(name)["rows"]} == {None}


def test_what_is_kept_is_read_again_and_written_the_same(tmp_path):
    for name in sorted(results.names()):
        results.keep(tmp_path, kept_result(name), card(name)[1].rows)
    for table in ("made.csv", "rows.csv"):
        old, new = (results._read(at / table) for at in (results.HERE, tmp_path))
        names = {line["name"] for line in new}
        assert names == set(results.names())
        assert [line for line in old if line["name"] in names] == new


def test_the_best_candidate_is_that_of_validation_and_of_equal_bytes():
    validated = {
        "ma_10": [60, 62],
        "ma_50": [55, 56],
        "easgd": [50, 52],
        "easgd_a": [51, 50],
    }
    values = {f"global_validation_top1/{name}": top1 for name, top1 in validated.items()}
    sent = {"ma_10": 5.0, "ma_50": 1.0, "easgd": 1.0, "easgd_a": 0.5}
    values |= {f"exchanged_mb/{name}": [mb, mb] for name, mb in sent.items()}
    assert best_candidates(values, ["ma", "easgd", "soup"], "ma_50") == {
        "ma": "ma_10", "ma at equal bytes": "ma_50",
        "easgd": "easgd", "easgd at equal bytes": "easgd",
    }  # fmt: skip
    assert best_candidates(values, ["ma"], None) == {"ma": "ma_10"}


def averaged(tau):
    return {"aggregation": {"type": "train/aggregation/model_average", "tau": tau}}


def choosing(**settings):
    overrides = {
        "seeds": [3, 4],
        "method.processes": False,
        "method.compare": {"ma_1": averaged(1), "ma_4": averaged(4)},
    }
    return Trained(
        experiment="smoke/ensemble",
        without_images="smoke/ensemble",
        overrides=overrides,
        **{"best_of": ["ma"]} | settings,
    )


@pytest.mark.long
@pytest.mark.usefixtures("in_this_process")
def test_only_the_chosen_are_trained_with_the_other_seeds(elsewhere, kdlab_home):
    lines = []
    measured = choosing(choosing_seeds=[3]).measure(elsewhere, lines.append)
    values = measured.values
    chosen = measured.facts["chosen"].removeprefix("ma ")
    left_out = {"ma_1": "ma_4", "ma_4": "ma_1"}[chosen]
    assert [line for line in lines if line.startswith("training ")] == [
        "training ma_1/seed3",
        "training ma_4/seed3",
        f"training {chosen}/seed4",
    ]
    validated = {k: values[f"global_validation_top1/{k}"][0] for k in (chosen, left_out)}
    assert validated[chosen] >= validated[left_out]
    assert len(values["global/best of ma"]) == 2
    assert values["global/best of ma"] == values[f"global/{chosen}"]
    assert len(values[f"global/{left_out}"]) == 1
    assert measured.facts["seeds"] == [3, 4]
    assert len(measured.facts["run"]) == 2


def test_what_cannot_choose_is_said_before_anything_is_trained(elsewhere):
    def measured(**settings):
        choosing(**settings).measure(elsewhere, pytest.fail)

    missing = (
        r"^best_of and within name {}, which method\.compare has not: it has ma_1, ma_4\."
    )
    for names, settings in (
        ("ma", {"within": "ma"}),
        ("m, ec", {"best_of": ["m", "ma", "ec"]}),
        ("ec, ec", {"best_of": ["ec"], "within": "ec"}),
    ):
        with pytest.raises(BadInput, match=missing.format(names)):
            measured(**settings)
    with pytest.raises(
        BadInput, match=r"name none, which method\.compare has not: it has nothing"
    ):
        Trained(
            experiment="smoke/none", without_images="smoke/none", best_of=["none"]
        ).measure(elsewhere, pytest.fail)
    for seeds in ([3, 4], [5]):
        with pytest.raises(BadInput, match=r"choosing_seeds are .*, and seeds \[3, 4\]"):
            measured(choosing_seeds=seeds)


def test_a_share_of_time_is_to_where_the_other_ends():
    """Between evaluations the best top-1 so far is interpolated; all seeds have a share or none."""
    seen = {
        "blocks": [
            [(10.0, 40.0), (20.0, 60.0), (30.0, 55.0)],
            [(10.0, 50.0), (20.0, 70.0)],
        ],
        "whole": [[(25.0, 45.0), (40.0, 50.0)], [(20.0, 45.0), (50.0, 60.0)]],
    }
    shares, undefined = shares_of_time(seen)
    assert shares == {"time/blocks-whole": [15.0 / 40.0, 15.0 / 50.0]}
    assert undefined == {"time/whole-blocks": "2 of 2 seeds do not get there"}


def test_what_is_undefined_is_kept_with_its_reason(tmp_path):
    name = "ec_dnn/table1"
    facts, rows = kept_result(name), card(name)[1].rows
    (at,) = [k for k, r in enumerate(rows) if (r.row, r.quantity) == ("E-DNN_G", "speed")]
    facts["rows"][at] = MeasuredRow(rows[at], None, (), "it is flat, early").facts()
    facts["curves"] = {"ma_g": [[(0.5, 60.25), (20.0, 44.0)], [(0.5, 61.0)]]}
    results.keep(tmp_path, facts, rows)
    before = results.undefined_in(results.HERE, name)
    why = {("E-DNN_G", "speed"): "it is flat, early"}
    assert results.undefined_in(tmp_path, name) == before | why
    (line,) = [k for k in as_markdown(facts).splitlines() if "E-DNN\\_G | speed" in k]
    assert "1.58 | undefined: it is flat, early |" in line
    seen = (tmp_path / "curves.csv").read_text().splitlines()
    assert seen == ["name,curve,points", f"{name},ma_g,0.5 60.25; 20 44 | 0.5 61"]


@pytest.mark.long
def test_from_the_command_line(kdlab_cli, elsewhere):
    code, out, _ = kdlab_cli("reproduce")
    assert code == 0
    assert "edl_dist/table3" in out
    assert "journal Table 3" in out
    words = ("reproduce", "edl_dist/table3", "--simulate-only", "--keep", "--json")
    code, out, err = kdlab_cli(*words)
    assert code == 0, err
    answer = json.loads(out.strip().split("\n")[-1])
    assert {"name", "rows", "figures", "machine", "versions", "command"} <= answer.keys()
    row = next(r for r in answer["rows"] if r["row"] == "12 cores")
    assert row["is"] == "predicted"
    assert abs(row["off_pct"]) <= 5
    assert results.names()["edl_dist/table3"] == Path("registry/results").resolve()
    assert kept_result("edl_dist/table3")["rows"] == answer["rows"]
    code, _, err = kdlab_cli("reproduce", "measurement.repeats=5")
    assert code == 2
    code, _, err = kdlab_cli("reproduce", "edl_dist/table9")
    assert code == 2
    assert "Nearest: edl_dist/table" in err
    code, _, err = kdlab_cli("reproduce", "edl_dist/table4", "measurement.images=[no.zip]")
    assert code == 2
    assert "are not there: no.zip" in err


def test_markdown_has_no_empty_columns_and_no_html():
    _, spec = card("ec_dnn/fig5")
    facts = {
        "name": "x", "source": "<b>paper</b>", "command": "kdlab", "seconds": 1.0,
        "machine": {"cores": 2, "gpu": None}, "versions": {"torch": "2"},
        "scaled": "", "notes": ["a <b>note</b>"],
        "rows": [MeasuredRow(row, 1.0, ()).facts() for row in spec.rows],
    }  # fmt: skip
    text = as_markdown(facts)
    assert "measured" not in text
    assert "<b>" not in text
    assert "Note: a <b>note</b>" in printed(facts)


def test_an_unknown_result_names_the_nearest():
    with pytest.raises(NotFoundError):
        kept_table("edl_dist/table99")


def test_the_last_part_of_a_name_is_enough_where_one_has_it():
    assert card("rivals") == card("ec_dnn/rivals")
    with pytest.raises(
        NotFoundError, match=r"Several are: edl_dist/table2, pipe_bd/table2\."
    ):
        card("table2")
    with pytest.raises(NotFoundError, match="Nearest: ec_dnn/rivals"):
        card("rival")


@pytest.mark.long
def test_an_interrupted_reproduction_continues_with_its_runs(
    elsewhere, kdlab_home, in_this_process
):
    spec = Trained(
        experiment="smoke/none",
        without_images="smoke/none",
        overrides={"tracking.enabled": False},
        variants={"slow": {"train.lr": 0.01}, "fast": {"train.lr": 0.1}},
        latencies=True,
    )
    folders = [elsewhere / "whole", elsewhere / "interrupted"]
    for folder in folders:
        folder.mkdir()
    expected = spec.measure(folders[0], lambda line: None)
    later = []  # runs of the second reproduction
    in_this_process.stop = lambda folder: (
        later.append(folder) or (len(set(later)) == 2 and after(2)(folder))
    )
    with pytest.raises(RunStopped):
        spec.measure(folders[1], lambda line: None)
    in_this_process.stop = lambda folder: False
    lines = []
    measured = spec.measure(folders[1], lines.append)
    first, second = measured.facts["run"]
    assert [line for line in lines if "interrupted" in line] == [
        f"{first} of an interrupted reproduction is finished; runs.json has it",
        f"{second} of an interrupted reproduction is stopped; runs.json has it",
    ]
    assert len(list((elsewhere / "runs").glob("2*"))) == 4
    assert not {first, second} & {*expected.facts["run"]}
    for name in ("top1/slow", "top1/fast"):
        assert measured.values[name] == expected.values[name]
    assert all(measured.values[f"engine_ms/{name}"][0] > 0 for name in ("slow", "fast"))
    assert measured.facts["run_seconds"] > 0
    # A run that was deleted is started again
    attach(second).delete()
    attach(first).delete()
    again = spec.measure(folders[1], lines.append)
    assert not {first, second} & {*again.facts["run"]}
    assert again.values["top1/fast"] == expected.values["top1/fast"]


def test_a_damaged_list_of_runs_is_said_to_be(elsewhere):
    (elsewhere / "runs.json").write_text("[")
    spec = Trained(experiment="smoke/none", without_images="smoke/none")
    with pytest.raises(MessageError, match=r"runs\.json.*Delete it to begin anew"):
        spec.measure(elsewhere, lambda line: None)


@pytest.mark.slow("a student and its teachers, at a set speed")
@pytest.mark.nightly
def test_a_share_is_measured(elsewhere):
    """Teachers supply a tenth of what the student needs: even on a busy machine it has < half."""
    spec = Shares(cases={"tenth": Teachers(teachers=2, each=0.05)}, repeats=1)
    (shares,) = spec.measure(elsewhere, lambda line: None).values.values()
    assert 0 < shares[0] < 0.5


@pytest.mark.slow("two runs, one of them served")
def test_accuracies_are_measured_and_drawn(elsewhere, kdlab_home):
    (result,) = reproduce("edl_dist/fig7", ["measurement.without_images=smoke/served"])
    served = next(row for row in result.rows if row.spec.row == "EDL-Dist")
    assert len(served.measured) == 1
    assert result.seconds >= result.measurement["run_seconds"] > 0
    assert not list(elsewhere.rglob("runs.json"))  # the next one has runs of its own
    assert {p.name for p in result.files} >= {"result.json", "table.md", "curves.png"}


def test_a_faulty_variant_is_found_before_the_first_is_trained(elsewhere):
    right = {"method.compare": {"ma_1": averaged(1)}}
    compared = {"method.compare": {"ma_1": averaged(1), "ma_4": averaged(4)}}
    for wrong, error in ((right | {"train.epochz": 2}, SpecError), (compared, BadInput)):
        spec = Trained(
            experiment="smoke/ensemble",
            without_images="smoke/ensemble",
            variants={"right": right, "wrong": wrong},
        )
        with pytest.raises(error, match=r"epochz|wrong of .* compares ma_1, ma_4"):
            spec.measure(elsewhere, pytest.fail)


@pytest.mark.long
@pytest.mark.usefixtures("in_this_process")
def test_a_variant_stands_where_a_source_does(elsewhere, kdlab_home):
    spec = Trained(
        experiment="smoke/in_process",
        without_images="smoke/in_process",
        overrides={"tracking.enabled": False},
        variants={"cool": {"loss.temperature": 1}, "hot": {"loss.temperature": 8}},
        curves=True,
    )
    lines = []
    measured = spec.measure(elsewhere, lines.append)
    assert lines.count("training in_process/seed0") == 2
    assert lines.count("in_process/seed0 is trained, 1 of 1") == 2
    cool, hot = measured.values["top1/cool"][0], measured.values["top1/hot"][0]
    assert measured.values["top1/cool-hot"] == [cool - hot]
    assert measured.values["top1/teacher of hot"] == measured.values["top1/teacher of cool"]
    assert {"ece/cool", "ece/hot", "ece/teacher of cool"} <= measured.values.keys()
    assert set(measured.curves["top-1 on validation, %"]) == {"cool", "hot"}
    assert len(set(measured.facts["spec_hash"])) == 2
