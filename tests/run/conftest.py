import json

import pytest

from kdlab.cli import main


@pytest.fixture
def kdlab_cli(elsewhere, capsys):
    """Runs the command line in this process: (exit code, stdout, stderr)."""

    def call(*words):
        code = main(list(words))
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def run_json(kdlab_cli):
    """`kdlab run --json`, which must end with one JSON object on one line."""

    def call(*words):
        code, out, err = kdlab_cli("run", *words, "--json")
        assert code == 0, err
        return json.loads(out.strip().split("\n")[-1])

    return call
