import json

import pytest


@pytest.fixture
def run_json(kdlab_cli):
    """`kdlab run --json`, which must end with one JSON object on one line."""

    def call(*words):
        code, out, err = kdlab_cli("run", *words, "--json")
        assert code == 0, err
        return json.loads(out.strip().split("\n")[-1])

    return call
