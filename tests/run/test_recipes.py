"""Published recipes: listed with their sources, and each can be asked for with each loss card."""

import json

import pytest

import kdlab
from kdlab.config import folders
from kdlab.run.recipes import recipes

LOSSES = sorted(n for n in folders.names("registry") if n.startswith("losses/"))


def test_every_recipe_says_where_its_figures_are_from(kdlab_cli):
    listed = recipes()
    assert len(listed) >= 12
    assert all(recipe["source"] and recipe["about"] and recipe["cost"] for recipe in listed)
    code, out, _ = kdlab_cli("recipes")
    assert code == 0
    assert all(recipe["name"] in out for recipe in listed)
    code, out, _ = kdlab_cli("recipes", "--json")
    assert json.loads(out.splitlines()[-1])["recipes"] == listed


@pytest.mark.parametrize(
    ("text", "code", "answer"),
    [
        ("about: hello", 0, "hello\nSource: -"),
        ("expects: 5", 0, "Source: -"),
        ("expects: {source: 5, top1: high, cost: 3, differs: [a]}", 0, "Source: -"),
        ("expects: {differs: {train: 5}}", 0, "train"),
        ("about: [1", 2, "this is not valid YAML"),
        ("- a list", 2, "must be a mapping"),
        ("about: \udcff", 2, "is not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_recipe_breaks_no_list(kdlab_cli, elsewhere, text, code, answer):
    path = elsewhere / "configs" / "recipes" / "x.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    listed_code, out, err = kdlab_cli("recipes")
    assert listed_code == 0, err
    assert "recipes/cifar100/resnet32x4_resnet8x4" in out
    shown_code, out, err = kdlab_cli("recipes", "x")
    assert (shown_code, answer in out + err) == (code, True), out + err


@pytest.mark.parametrize("loss", LOSSES)
def test_a_pair_takes_every_loss_of_its_protocol(loss):
    experiment = kdlab.load("recipes/cifar100/resnet32x4_resnet8x4", f"loss={loss}")
    assert experiment.spec.train.drop_lr_at == (150, 180, 210)
    assert experiment.spec.loss.soft_weight > 0
