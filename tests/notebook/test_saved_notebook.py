"""A notebook that is executed without a page, as nbconvert and papermill do, keeps its pictures."""

import nbformat
import pytest
from nbclient import NotebookClient
from written_runs import WrittenRun

pytestmark = pytest.mark.processes("a kernel that imports kdlab and its widgets")


def test_the_live_view_leaves_its_last_picture_and_lines_stay_lines(kdlab_home, elsewhere):
    """The first run ends while its view is shown, below the cell that waits for it."""
    shown = WrittenRun(path=elsewhere / "runs" / "shown").begin().train(5)
    shown.say("run_done", member=None, state="finished")
    lines = WrittenRun("smoke/in_process", path=elsewhere / "runs" / "lines")
    lines.begin("in_process/seed0").train(20)
    for epoch in (1, 2):
        lines.say("epoch_done", epoch=epoch, of_epochs=2, step=10 * epoch)
    lines.end()
    cells = (
        "import kdlab\nrun = kdlab.attach('shown')\nrun.live()",
        "run.folder.write_status(state='finished', result={})\nrun.wait().state",
        "kdlab.attach('lines').wait().state",
    )
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    resources = {"metadata": {"path": str(elsewhere)}}
    done = NotebookClient(book, timeout=600, resources=resources).execute()
    pages = [o.data["text/html"] for o in done.cells[0].outputs if "text/html" in o.data]
    assert any("kd-still" in page and "<img" in page for page in pages)
    (state,) = [o for o in done.cells[1].outputs if o.output_type == "execute_result"]
    assert state.data["text/plain"] == "'finished'"
    printed = "".join(o.text for o in done.cells[2].outputs if o.output_type == "stream")
    assert "in_process/seed0: epoch 2/2" in printed
    assert "\x1b" not in printed
