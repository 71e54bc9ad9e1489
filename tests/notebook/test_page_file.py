"""A page to send: all points of a view, no kernel, and no name that a browser would run."""

import base64
import json
import re

import numpy as np
import pytest
from written_runs import WrittenRun

import kdlab
from kdlab.errors import BadInput

EVIL = "</script><script>document.title='broken'</script>"


def saved_view(page):
    """Return the facts that are saved in the page, as a browser reads them."""
    (text,) = re.findall(r'id="saved">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


@pytest.fixture
def run(elsewhere):
    return WrittenRun().begin().train(5)


def test_it_has_all_points_of_a_run_and_no_controls(run):
    run.end()
    page = kdlab.page(run.handle)
    saved = saved_view(page)
    assert saved["traits"]["controls"] == {}
    assert saved["traits"]["state"]["state"] == "finished"
    points = np.frombuffer(base64.b64decode(saved["points"])).reshape(-1, 3)
    names = [curve["name"] for curve in saved["reset"]["curves"]]
    losses = points[points[:, 0] == names.index("loss")]
    assert len(losses) == 5
    assert "default-src 'none'" in page
    assert not re.search(r"""(src|href)=["']?http""", page)


def test_several_runs_are_on_one_page(run):
    second = WrittenRun().begin().train(2)
    saved = saved_view(kdlab.page(run.handle, second.handle))
    assert {curve["run"] for curve in saved["reset"]["curves"]} == {
        run.handle.id, second.handle.id,
    }  # fmt: skip


def test_names_are_nothing_that_a_browser_runs(elsewhere):
    run = WrittenRun().begin()
    run.say("run_started", member=None, experiment=EVIL, members=[run.member])
    run.train(1)
    page = kdlab.page(run.handle)
    assert EVIL not in page
    assert saved_view(page)["traits"]["state"]["title"] == EVIL


def test_nothing_has_no_page():
    with pytest.raises(BadInput, match="shows one run, several runs, or one sweep"):
        kdlab.page()
