"""The smallest bench, by its command: `kdlab bench transport`."""

import json

import pytest
from dask import config as dask_config


@pytest.mark.processes("a pool with a teacher for each way and size")
def test_the_transport_bench_measures_each_way_at_each_size(kdlab_cli, kdlab_home):
    """It once called the pool without its certificates, and could measure nothing."""
    code, out, err = kdlab_cli("bench", "transport", "--repeats", "1", "--json")
    assert code == 0, err
    report = json.loads(out.splitlines()[-1])
    assert report["name"] == "transport"
    assert {"cores", "system"} <= report["machine"].keys()
    figures = {f["name"]: f["value"] for f in report["figures"]}
    for size, pixels in ((32, 3 * 32 * 32), (224, 3 * 224 * 224)):
        assert figures[f"bytes_per_sample/reference/{size}"] < 1000
        assert figures[f"bytes_per_sample/value_uint8/{size}"] > pixels
        assert figures[f"bytes_per_sample/value_float32/{size}"] > 4 * pixels
    assert all(value > 0 for value in figures.values())
    assert not dask_config.get("distributed.comm.require-encryption")  # as it was
