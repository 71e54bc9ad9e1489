"""Recipes are their sources: each value is the published one, or it is said why it is not."""

import math
from pathlib import Path

import pytest
import yaml

import kdlab
from kdlab.config.load import at
from kdlab.run.recipes import recipes

PUBLISHED = {
    path.stem: yaml.safe_load(path.read_text())
    for path in (Path(__file__).parents[1] / "published").glob("*.yaml")
}
PAIRS = PUBLISHED["mdistiller"]["pairs"]
SOLVER = {
    "train.batch": "BATCH_SIZE", "train.epochs": "EPOCHS", "train.lr": "LR",
    "train.drop_lr_at": "LR_DECAY_STAGES", "train.drop_lr_factor": "LR_DECAY_RATE",
    "train.weight_decay": "WEIGHT_DECAY", "train.momentum": "MOMENTUM",
}  # fmt: skip


def timms(p, lr, scaled):
    """Return settings of train and data from arguments with the names of timm."""
    return {
        "train.batch": p["batch_size"] * p["gpus"],
        "train.epochs": p["epochs"],
        "train.optimizer": f"timm/{p['opt']}",
        "train.lr": lr,
        "train.schedule": f"timm/{p['sched']}",
        "train.schedule_options.min_lr": p["min_lr"] * scaled,
        "train.schedule_options.warmup_lr": p["warmup_lr"] * scaled,
        "train.warmup_epochs": p["warmup_epochs"],
        "train.weight_decay": p["weight_decay"],
        "train.clip_grad_norm": p.get("clip_grad"),
        "train.ema": p.get("model_ema_decay"),
        "train.label_smoothing": p["smoothing"],
        "train.hard_loss": "bce" if p.get("bce_loss") else "cross_entropy",
        "train.precision": p["amp"],
        "student.drop_path_rate": p["drop_path"],
        "data.sampling.repeats": p["repeats"],
        "data.augment.policy": p["aa"],
        "data.augment.erasing": p["reprob"],
        "data.augment.mixup_alpha": p["mixup"],
        "data.augment.cutmix_alpha": p["cutmix"],
        "data.augment.mixup_prob": p["mixup_prob"],
        "data.augment.mixup_switch_prob": p["mixup_switch_prob"],
        "data.augment.resized_crop": 0.08,  # timm's default
        "data.augment.flip": True,
        "data.augment.brightness": 0.0,  # timm leaves a jitter away beside aa
    }


def deit():
    p = PUBLISHED["deit"]["arguments"]
    lr = p["lr"] * p["batch_size"] * p["gpus"] / 512
    teacher = (
        f"hf-hub:timm/{p['teacher_model']}.deit_in1k@main"  # timm's name of teacher_path
    )
    return timms(p, lr, 1) | {
        "teacher.model.place": teacher,
        "loss.type": f"losses/{p['distillation_type']}",
        "loss.soft_weight": p["distillation_alpha"],
        "loss.hard_weight": 1 - p["distillation_alpha"],
    }


def vanilla_kd():
    p = PUBLISHED["vanilla_kd"]["arguments"]
    return timms(p | {"repeats": p["aug_repeats"]}, p["lr"], 1) | {
        "student.type": f"timm/{p['model']}",
        "loss.type": "losses/hinton",
        "loss.temperature": p["temperature"],
        "loss.soft_weight": p["kd_loss_weight"],
        "loss.hard_weight": p["ori_loss_weight"],
    }


def tiny_vit():
    p = PUBLISHED["tiny_vit"]["arguments"]
    scaled = p["DATA.BATCH_SIZE"] * p["gpus"] / 512
    names = {
        "batch_size": "DATA.BATCH_SIZE", "epochs": "TRAIN.EPOCHS", "min_lr": "TRAIN.MIN_LR",
        "opt": "TRAIN.OPTIMIZER.NAME", "sched": "TRAIN.LR_SCHEDULER.NAME",
        "warmup_lr": "TRAIN.WARMUP_LR", "warmup_epochs": "TRAIN.WARMUP_EPOCHS",
        "weight_decay": "TRAIN.WEIGHT_DECAY", "clip_grad": "TRAIN.CLIP_GRAD",
        "drop_path": "MODEL.DROP_PATH_RATE", "aa": "AUG.AUTO_AUGMENT", "reprob": "AUG.REPROB",
        "mixup": "AUG.MIXUP", "cutmix": "AUG.CUTMIX",
    }  # fmt: skip
    arguments = {ours: p[theirs] for ours, theirs in names.items()}
    rest = {"gpus": p["gpus"], "amp": p["amp"], "repeats": 1, "smoothing": 0.0}
    rest |= {"mixup_prob": 1.0, "mixup_switch_prob": 0.5}  # without effect
    return (
        timms(arguments | rest, p["TRAIN.BASE_LR"] * scaled, scaled)
        | {
            "loss.type": "losses/soft_cross_entropy",  # SoftTargetCrossEntropy of the teacher alone
            "loss.hard_weight": 0.0,
            "loss.soft_weight": 1.0,
            "soft_labels.top_k": p["DISTILL.LOGITS_TOPK"],
        }
    )


def pair(name, kind):
    """Return mdistiller's settings for KD or DKD of a pair."""
    p = PUBLISHED["mdistiller"]["defaults"]
    settings = {ours: p["SOLVER"][theirs] for ours, theirs in SOLVER.items()}
    if kind == "kd":
        loss = p["KD"]
        return settings | {
            "loss.type": "losses/hinton",
            "loss.temperature": loss["TEMPERATURE"],
            "loss.hard_weight": loss["CE_WEIGHT"],
            "loss.soft_weight": loss["KD_WEIGHT"],
        }
    loss = p["DKD"] | PAIRS[name]["DKD"]
    if kind == "dkd_ls":
        loss |= PUBLISHED["logit_standardization"]["made"]["DKD"]
    return settings | {
        "loss.type": "losses/dkd",
        "loss.standardise": kind == "dkd_ls",
        "loss.hard_weight": loss["CE_WEIGHT"],
        "loss.soft_weight": 1.0,
        "loss.target_weight": loss["ALPHA"],
        "loss.other_weight": loss["BETA"],
        "loss.temperature": loss["T"],
        "loss.warm_up_epochs": loss["WARMUP"],
    }


def multi_level(*, standardise):
    p = PUBLISHED["multi_level"]["arguments"]
    weight, base = p["KD.LOSS.KD_WEIGHT"], p["KD.TEMPERATURE"]
    if standardise:
        arguments = PUBLISHED["logit_standardization"]["arguments"]
        weight, base = arguments["kd_weight"], arguments["base_temp"]
    masks = p["share_of_masks"]
    return {ours: p["SOLVER"][theirs] for ours, theirs in SOLVER.items()} | {
        "loss.type": "losses/multi_level",
        "loss.standardise": standardise,
        "loss.hard_weight": 2 * p["KD.LOSS.CE_WEIGHT"],
        # KL of one view times the masks, and once more of both; the rest of the masked one
        "loss.soft_weight": weight * (1 + masks),
        "loss.batch_weight": masks / (1 + masks),
        "loss.class_weight": masks / (1 + masks),
        "loss.temperatures": sorted([base, *p["temperatures_beside"]]),
    }


def compare(experiment, published):
    """Check that each value is the published one or listed in `differs`, at a real key."""
    tree, differs = experiment.spec.to_dict(), experiment.spec.expects.differs
    missing = object()
    assert all(at(tree, key, missing) is not missing for key in differs)
    for key, value in published.items():
        configured = at(tree, key)
        if isinstance(value, float) and isinstance(configured, float):
            same = math.isclose(configured, value, rel_tol=1e-9)
        else:
            same = configured == value
        assert same or key in differs, f"{key} is {configured}, published {value}"


@pytest.mark.parametrize(
    ("name", "published"),
    [("deit_tiny", deit), ("vanilla_kd", vanilla_kd), ("tiny_vit", tiny_vit)],
)
def test_recipes_of_imagenet_are_their_sources(name, published):
    experiment = kdlab.load(f"recipes/{name}")
    compare(experiment, published())
    (teacher,) = experiment.spec.teachers()
    assert teacher.model.weights is not None  # as they are: nothing trains them


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_are_mdistillers(name):
    base = f"recipes/cifar100/{name}"
    compare(kdlab.load(base), pair(name, "kd"))
    folder = "" if name == "resnet32x4_resnet8x4" else f"{name}/"
    compare(kdlab.load(base, f"loss=losses/cifar100/{folder}dkd"), pair(name, "dkd"))
    compare(kdlab.load(base, "loss=losses/cifar100/dkd_ls"), pair(name, "dkd_ls"))


def test_multi_level_distillation_is_its_authors_in_one_view():
    name = "recipes/cifar100/resnet32x4_resnet8x4_multi_level"
    compare(kdlab.load(name), multi_level(standardise=False))
    standard = kdlab.load(name, "loss=losses/cifar100/multi_level_ls")
    compare(standard, multi_level(standardise=True))


def test_each_transcription_says_what_it_is_of():
    for name, transcription in PUBLISHED.items():
        source = transcription["source"]
        assert "/" in source["repository"], name
        commits = source["files"].values() if "commit" not in source else [source["commit"]]
        assert all(len(commit) == 40 for commit in commits), name


def test_kdlab_recipes_says_what_differs_and_why(kdlab_cli):
    for recipe in recipes():
        assert recipe["differs"], recipe["name"]
        code, out, _ = kdlab_cli("recipes", recipe["name"].removeprefix("recipes/"))
        assert code == 0
        assert recipe["source"] in out
        assert all(key in out and why[:40] in out for key, why in recipe["differs"].items())
    code, _, err = kdlab_cli("recipes", "deit_tinny")
    assert code == 2
    assert "Nearest: recipes/deit_tiny" in err
