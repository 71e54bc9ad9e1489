"""A config, a sweep or a run folder of somebody else: nothing of this user runs or leaves."""

import contextlib
import socket
import threading

import numpy as np
import pytest
import yaml
from PIL import Image

import kdlab
from kdlab.cluster.transport.known_schedulers import require_known
from kdlab.errors import BadInput
from kdlab.run.experiment import loaded
from kdlab.run.handle.run import create_folder, resume
from kdlab.tuning import search


@pytest.fixture
def somebody():
    """Listens, and counts who comes; whoever speaks Dask with it opens its pickles."""
    came = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    came.append(server.accept()[1])

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}", came
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def configs(address):
    """Configs that name this address."""
    pool = {"type": "cluster/remote_pool", "address": address, "insecure": True}
    yield kdlab.load("smoke/served").resolved | {"teacher_pool": pool}
    workers = {"address": address, "insecure": True}
    yield kdlab.load("smoke/blockwise").resolved | {"workers": workers}


@pytest.mark.parametrize("number", [0, 1])
def test_nobody_that_a_config_names_is_spoken_to(
    somebody, number, kdlab_home, elsewhere, monkeypatch
):
    """Its answer was unpickled in the check before the run."""
    address, came = somebody
    path = elsewhere / "theirs.yaml"
    path.write_text(yaml.safe_dump(list(configs(address))[number]))
    experiment = kdlab.load(path)
    for tried in (experiment.check, experiment.start):
        with pytest.raises(BadInput, match="which you have not named yet") as refused:
            tried()
    assert f"KDLAB_ADDRESSES={address}" in str(refused.value)
    assert came == []
    monkeypatch.setenv("KDLAB_ADDRESSES", f"tls://other:1 {address}")
    require_known("teacher_pool", address)
    monkeypatch.delenv("KDLAB_ADDRESSES")
    # Overrides that stand in a sweep's file are somebody else's, too.
    loaded(path, {"teacher_pool.address": address} if number == 0 else {})
    with pytest.raises(BadInput, match="which you have not named yet"):
        require_known("teacher_pool", address)


@pytest.mark.parametrize("number", range(3))
def test_what_the_user_says_of_a_sweep_is_known(somebody, number, kdlab_home, elsewhere):
    address, _ = somebody
    tree = {
        "experiment": "smoke/none",
        "space": {"train.lr": {"low": 0.01, "high": 0.1}},
        "objectives": [{"metric": "validation_top1"}],
    }
    workers = {"address": address, "insecure": True}
    path = elsewhere / "theirs.yaml"
    path.write_text(yaml.safe_dump(tree | {"workers": workers}))
    if number == 0:  # in a file alone it is not
        search(path)
        with pytest.raises(BadInput):
            require_known("workers", address)
        return
    asked = (
        (path, f"workers.address={address}")
        if number == 1
        else (tree | {"workers": workers},)
    )
    search(*asked)
    require_known("workers", address)


def test_what_the_user_names_is_known_from_then_on(somebody, kdlab_home, elsewhere):
    address, _ = somebody
    path = elsewhere / "theirs.yaml"
    path.write_text(yaml.safe_dump(next(configs("tcp://127.0.0.1:1"))))
    kdlab.load(path, f"teacher_pool.address={address}")
    require_known("teacher_pool", address)
    with pytest.raises(BadInput):
        require_known("teacher_pool", "tcp://127.0.0.1:1")


@pytest.mark.processes
def test_nor_one_that_a_run_folder_names(somebody, kdlab_home, elsewhere):
    address, came = somebody
    path = elsewhere / "theirs.yaml"
    path.write_text(yaml.safe_dump(next(configs(address))))
    folder, _ = create_folder(kdlab.load(path), "stopped")
    run = resume(folder.run_id).wait(timeout_s=120)
    assert run.state == "failed"
    assert "which you have not named yet" in run.status.error
    assert came == []


@pytest.mark.parametrize("size", [256, 5000])
def test_a_name_too_long_for_a_file_is_a_sentence(kdlab_cli, elsewhere, size):
    code, _, err = kdlab_cli("data", "a" * size)
    assert code == 2
    assert "There is no file or folder" in err


def test_names_move_nobodys_cursor(kdlab_cli, kdlab_home, elsewhere):
    """A class called so cleared the terminal, and could answer in the user's place."""
    for name in ("\x1b[2Jcat", "dog\x9b31m", "bi\u202erd"):
        (elsewhere / "photos" / name).mkdir(parents=True)
        for number in range(4):
            pixels = np.full((8, 8, 3), 40 * number, np.uint8)
            Image.fromarray(pixels).save(elsewhere / "photos" / name / f"{number}.png")
    _, out, err = kdlab_cli("data", "photos")
    assert "\\x1b[2Jcat" in out
    assert not set("\x1b\x9b\u202e") & set(out + err)


@pytest.mark.parametrize("kind", ["env", "secret"])
def test_no_config_learns_where_alerts_go(kind, tmp_path, monkeypatch):
    """Whoever knows the address can write there in the user's name."""
    path = tmp_path / "secrets"
    path.write_text("KDLAB_WEBHOOK=https://h/token\n")
    path.chmod(0o600)
    monkeypatch.setenv("KDLAB_SECRETS", str(path))
    monkeypatch.setenv("KDLAB_WEBHOOK", "https://h/token")
    uri = f"https://me:<{kind}:KDLAB_WEBHOOK>@elsewhere.org"
    with pytest.raises(BadInput, match="KDLAB_WEBHOOK> is refused") as refused:
        _ = kdlab.load("smoke/none", {"tracking.enabled": True, "tracking.uri": uri}).spec
    assert "token" not in str(refused.value)
