"""`kdlab sweep`, up to where a process would be started."""

import pytest
import yaml
from small_sweeps import SIMULATED, TRAINED, searched

from kdlab.experiment.folder import sweeps_folder
from kdlab.tuning.folder import SweepFolder


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"space": {"train.momentun": {"low": 0, "high": 1}}}, "Nearest: train.momentum"),
        ({"objectives": [{"metric": "speed"}]}, "All: validation_top1"),
        ({"sampler": {"name": "tpe", "n_start": 1}}, "Nearest: n_startup_trials"),
    ],
)
def test_bad_input_ends_with_2_before_anything_starts(kdlab_cli, elsewhere, content, words):
    (elsewhere / "bad.yaml").write_text(yaml.safe_dump(TRAINED | content))
    code, _, err = kdlab_cli("sweep", "bad.yaml")
    assert (code, words in err) == (2, True), err
    assert not (elsewhere / "runs").exists()


def test_an_unknown_sweep_names_the_nearest(kdlab_cli):
    code, _, err = kdlab_cli("sweep", "quickstar")
    assert (code, "Nearest: quickstart" in err) == (2, True)


def test_a_name_for_the_best_is_checked_before_the_search(kdlab_cli, elsewhere):
    (elsewhere / "configs").mkdir()
    (elsewhere / "configs" / "tuned.yaml").write_text("")
    code, _, err = kdlab_cli("sweep", "quickstart", "--save", "tuned")
    assert (code, "configs/tuned.yaml exists already" in err) == (2, True)


def test_a_study_of_another_sweep_is_refused(kdlab_cli, elsewhere):
    folder = SweepFolder(sweeps_folder() / "mine")
    folder.path.mkdir(parents=True)
    searched(SIMULATED)._write(folder, {})
    (elsewhere / "other.yaml").write_text(
        yaml.safe_dump(SIMULATED | {"overrides": {"steps": 33}})
    )
    code, _, err = kdlab_cli("sweep", "other.yaml", "--study", "mine")
    assert (code, "another sweep" in err) == (2, True)
