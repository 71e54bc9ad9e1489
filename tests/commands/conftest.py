"""Commands without a shell, and runs that are none."""

import pytest

from kdlab import cli


@pytest.fixture
def typed(capsys, monkeypatch):
    """Runs a command's `do` on what was typed: exit code, stdout, stderr."""

    def run_it(module, *words):
        name = next(n for n, command in cli.COMMANDS.items() if command is module)
        code = module.do(cli.parser().parse_args([name, *words]))
        return code, *capsys.readouterr()

    return run_it


@pytest.fixture
def found(monkeypatch):
    """Lets `attach` of runs and of sweeps find this one."""

    def put(one):
        names = []
        for place in ("kdlab.run.attach", "kdlab.tuning.attach_sweep"):
            monkeypatch.setattr(place, lambda name: names.append(name) or one)
        return names

    return put
