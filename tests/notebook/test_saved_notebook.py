"""A notebook that is executed without a page, as nbconvert and papermill do, keeps its pictures."""

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def test_the_live_view_leaves_its_last_picture_and_lines_stay_lines(kdlab_home, elsewhere):
    cells = (
        "import kdlab\nexp = kdlab.load('smoke/in_process', 'tracking.enabled=false')",
        "run = exp.start()\nrun.live()",
        "run.wait().state",
        "exp.start().wait().state",
    )
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    resources = {"metadata": {"path": str(elsewhere)}}
    done = NotebookClient(book, timeout=600, resources=resources).execute()
    pages = [o.data["text/html"] for o in done.cells[1].outputs if "text/html" in o.data]
    assert any("kd-still" in page and "<img" in page for page in pages)
    (state,) = [o for o in done.cells[2].outputs if o.output_type == "execute_result"]
    assert state.data["text/plain"] == "'finished'"
    printed = "".join(o.text for o in done.cells[3].outputs if o.output_type == "stream")
    assert "in_process/seed0: epoch 2/2" in printed
    assert "\x1b" not in printed
