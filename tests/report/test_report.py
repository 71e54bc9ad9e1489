import html
import io

from rich.console import Console
from tests_support import event

from kdlab.events.log import parse
from kdlab.report.model_card import model_card
from kdlab.report.progress import Progress
from kdlab.report.table import NO_SPEEDS, result_table, spread, text_table
from kdlab.run.handle.result import Result
from kdlab.train.evaluate import Accuracy
from kdlab.train.result import MemberResult


def row(source, seed, top1, rate):
    return {
        "source": source,
        "seed": seed,
        "student_top1": top1,
        "student_top1_best": top1,
        "samples_per_second": rate,
        "wall_seconds": 2.0,
        "samples_lost": 0,
        "samples_repeated": 0,
    }


def test_table_lines_up():
    table = text_table(["a", "bb"], [["x", "1"], ["yyy", "22"]])
    assert table.split("\n") == ["a    bb", "---  --", "x     1", "yyy  22"]


def test_spread():
    assert spread([1.0, 3.0], 1) == "2.0 ± 1.4"
    assert spread([1.0], 2) == "1.00"


def test_results_are_grouped_over_seeds_and_relative_to_the_first():
    rows = [row("none", 0, 90, 100), row("served", 0, 92, 99)]
    rows += [row("none", 1, 92, 100), row("served", 1, 94, 99)]
    lines = result_table(rows).split("\n")
    assert "N-training" in lines[2]
    assert "91.00 ± 1.41" in lines[2]
    assert "EDL-Dist" in lines[3]
    assert "0.99x" in lines[3]
    assert "one after the other" in lines[4]  # a speed is of its hour, too
    assert "one after the other" not in result_table(rows[:1])


def test_where_cores_are_shared_there_are_no_speeds():
    rows = [row("none", 0, 90, 1122), row("served", 0, 92, 565) | {"shares_cores": True}]
    table = result_table(rows, teacher_top1=95.0)
    head, _, plain, _, teacher, note = table.split("\n")
    assert head.split("  ")[-2:] == ["wall s", "lost/repeated"]
    assert "1122" not in table
    assert plain.split()[-4:] == ["90.00", "90.00", "2.0", "0/0"]
    assert teacher.split() == ["teacher", "95.00", "-", "-", "-"]
    assert note == NO_SPEEDS
    shown = Result(runs=rows)._repr_html_()
    assert html.escape(NO_SPEEDS) in shown
    assert "1122" not in shown
    lone = result_table(rows[1:])  # with nothing beside it
    assert "samples/s" in lone
    assert NO_SPEEDS not in lone


def test_samples_that_were_not_trained_on_are_said_first():
    rows = [{**row("none", 0, 90, 100), "member": "none/seed0", "samples_seen": 5000}]
    assert "not trained on" not in result_table(rows)
    rows.append({**rows[0], "member": "ec/seed1", "samples_lost": 2960})
    first = "2,960 of 7,960 samples of ec/seed1 were not trained on."
    assert result_table(rows).split("\n")[0] == first
    rows[1]["without"] = "37 of 40 rounds went without worker 2"
    first = f"37 of 40 rounds went without worker 2: {first}"
    assert result_table(rows).split("\n")[0] == first
    page = Result(runs=rows)._repr_html_()
    warning, _, tables = page.partition("<table>")
    assert f'data-tone="warn">{first}</p>' in warning
    assert "2960" in tables


def seen(events, terminal=False):
    out = io.StringIO()
    with Progress(
        Console(file=out, force_terminal=terminal, width=80, height=25)
    ) as progress:
        for event in events:
            progress.on_event(event)
    return out.getvalue()


STEP = event(
    "step_logged", step=5, of_steps=10, loss=1.25, samples_per_second=99.0, volume=64, teachers=2,
    resends=0,
)  # fmt: skip
DONE = event(
    "epoch_done",
    epoch=1,
    of_epochs=1,
    step=10,
    validation_top1=50.0,
    samples_per_second=99.0,
)
START = event("run_started", run_id="r1", experiment="[red]x[/red]", thresholds=[32, 128])
MEMBER = event("member_started", member="served/seed0")


def test_plain_lines_where_there_is_no_terminal():
    text = seen([START, MEMBER, STEP, DONE])
    assert "epoch 1/1  loss 1.2500  validation top-1 50.00 %" in text
    assert "[red]x[/red]" in text  # names are shown, not read as colours


def test_a_live_block_shows_the_volume_between_its_thresholds():
    text = seen([START, MEMBER, STEP], terminal=True)
    assert "volume [" in text
    assert "64 of 128 (lt 32)" in text
    assert "teachers alive 2" in text


def test_when_all_teachers_are_gone_the_block_says_so():
    """The block showed the old count of teachers until the next step, which never comes."""
    gone = event(
        "all_teachers_lost", unplaced=64, wait_s=60.0, join="kdlab teacher tcp://x"
    )
    text = seen([START, MEMBER, STEP, gone], terminal=True)
    assert "teachers alive 0" in text
    assert "kdlab teacher tcp://x" in text  # a command that can be pasted


def test_while_a_pool_starts_the_bar_of_the_training_before_is_gone():
    out = io.StringIO()
    with Progress(Console(file=out, force_terminal=True, width=80)) as progress:
        for earlier in (START, MEMBER, STEP):
            progress.on_event(earlier)
        out.truncate(0)
        progress.on_event(event("pool_starting", pool="cluster/local_pool"))
        progress.live.refresh()
    assert "teacher pool: cluster/local_pool" in out.getvalue()
    assert "steps  [" not in out.getvalue()


def test_facts_that_are_missing_do_not_stop_the_watching():
    assert "- joined" in seen([event("teacher_joined", name="-")])
    assert seen([parse({"event": "teacher_joined", "member": "m"})]) == ""  # an older one


def test_model_card_has_what_a_reader_needs():
    accuracy = Accuracy(top1=91.5, top5=99.0, samples=10)
    result = MemberResult(
        member="served/seed0",
        source="served",
        seed=0,
        last=accuracy,
        best=accuracy,
        best_epoch=3,
        validation_last=90.0,
        validation_best=90.0,
        epochs=3,
        steps=30,
        samples_per_second=100.0,
        train_seconds=1.0,
        wall_seconds=2.0,
        seen=100,
        lost=0,
        repeated=0,
        rolled_back=0,
        figures={},
        model_path="student.safetensors",
        best_path="best.safetensors",
        parameters=12345,
        teacher_top1=99.0,
        costs={
            "teacher": dict(parameters=50_000, megabytes=0.2, gflops=1.0, latency_ms=9.0),
            "student": dict(parameters=12_345, megabytes=0.05, gflops=0.5, latency_ms=3.0),
        },
    )
    card = model_card(
        result,
        experiment="e",
        run_id="r",
        dataset="data/digits",
        spec={"student": {"type": "timm/resnet18"}},
        network="timm/resnet18",
        spec_hash="h",
        teacher_top1=99.0,
    )
    for words in ("timm/resnet18 distilled on data/digits", "99.00 %", "12,345", "0 lost"):
        assert words in card
    assert "| times smaller | 4.05 | 4 | 2 | 3 |" in card
