import shutil

import pytest

from benchmarks import live

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def test_the_live_bench_has_its_figures(kdlab_home, elsewhere):
    lines = []
    report = live.measure(1, lines.append)
    figures = {f["name"]: f for f in report["figures"]}
    assert figures["bytes_per_update"]["high"] <= 2000
    assert 0.2 < figures["samples_per_second_with_over_without"]["value"] < 5
    if shutil.which("chromium"):
        assert 0 < figures["browser_ms_per_s"]["value"] < 1000
        # 36,000 steps of three curves, thinned, are sent to a page that is opened late.
        assert figures["bytes_of_whole_history"]["value"] < 3 * 1200 * 24 + 1000
    assert not (elsewhere / "runs").exists()
