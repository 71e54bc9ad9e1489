"""The smallest bench as it is asked for: `kdlab bench transport`."""

import json

import pytest
from dask import config as dask_config


@pytest.mark.processes("a pool with a teacher for each way and size")
def test_the_transport_bench_measures_each_way_at_each_size(kdlab_cli, kdlab_home):
    """It asked the pool without its certificates once, and nothing could be measured."""
    code, out, err = kdlab_cli("bench", "transport", "--repeats", "1", "--json")
    assert code == 0, err
    found = json.loads(out.splitlines()[-1])
    assert found["name"] == "transport"
    assert {"cores", "system"} <= found["machine"].keys()
    figures = {f["name"]: f["value"] for f in found["figures"]}
    for size, pixels in ((32, 3 * 32 * 32), (224, 3 * 224 * 224)):
        assert figures[f"bytes_per_sample/reference/{size}"] < 1000
        assert figures[f"bytes_per_sample/value_uint8/{size}"] > pixels
        assert figures[f"bytes_per_sample/value_float32/{size}"] > 4 * pixels
    assert all(value > 0 for value in figures.values())
    assert not dask_config.get("distributed.comm.require-encryption")  # as it was
