"""Inner outputs beside logits: the same in the student's process and from a pool, to the bit."""

import json

import pytest
import timm
import torch
from runs_here import RunsHere
from safetensors.torch import load_file, save_file

import kdlab
from kdlab.errors import ModelError, SpecError
from kdlab.events.log import select
from kdlab.experiment.setup import TrainingSetup
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.torchvision import TorchvisionModel
from kdlab.models.with_features import Taps, WithFeatures, shapes_of, tap_of

FEATURES = json.dumps(
    [
        {
            "type": "features/hint",
            "teacher": "blocks.2",
            "student": "blocks.2",
            "weight": 0.5,
        },
        {"type": "features/relation", "weight": 0.01},
        {"type": "features/attention", "teacher": "blocks.1", "student": "blocks.1"},
    ]
)


def views():
    return torch.randint(0, 256, (3, 1, 16, 16), dtype=torch.uint8)


def test_taps_are_what_modules_put_out_and_the_network_stays_what_it_was():
    torch.manual_seed(0)
    spec = CifarResNet(depth=8, width=(4, 4, 8, 8))
    network, x = spec.build(10, 1).eval(), views()
    names = [tap_of(network, name, x) for name in ("blocks.1", "penultimate")]
    assert shapes_of(network, names, x) == [(8, 8, 8), (8,)]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in network.modules()]
    assert sum(hooks) == 0
    taps = Taps(network.net, names)
    logits = network(x)
    maps, hidden = taps.take()
    taps.close()
    head = network.net.get_submodule(names[1].partition(":")[0])
    assert torch.equal(head(hidden), logits)
    served = WithFeatures(model=spec, taps=tuple(names), classes=10).build(1, 1).eval()
    served.net.load_state_dict(network.net.state_dict())
    row = served(x)
    assert torch.equal(row[:, :10], logits)
    assert torch.equal(row[:, 10 : 10 + maps[0].numel()], maps.flatten(1))
    assert torch.equal(row[:, 10 + maps[0].numel() :], hidden)


def test_what_the_next_module_writes_over_is_refused():
    """torchvision's ReLU works in place: the norm before it puts out something else."""
    network = TorchvisionModel(variant="resnet18").build(10, 3)
    x = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    with pytest.raises(ModelError, match="overwrites its output"):
        shapes_of(network, ["bn1"], x)
    assert shapes_of(network, ["layer1"], x) == [(64, 16, 16)]
    assert sum(len(m._forward_hooks) for m in network.modules()) == 0


def test_a_module_that_is_never_asked_is_named():
    network = CifarResNet(depth=8, width=(4, 4, 8, 8)).build(10, 1)
    network.net.unused = torch.nn.Linear(2, 2)
    with pytest.raises(ModelError, match="never calls its module unused"):
        shapes_of(network, ["unused"], views())


def test_a_module_that_is_not_there_is_named():
    network = CifarResNet(depth=8, width=(4, 4, 8, 8)).build(10, 1)
    with pytest.raises(ModelError, match=r"no module 'layer9'"):
        tap_of(network, "layer9", views())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("smoke/none",), "no training has a teacher"),
        (("smoke/cached", "soft_labels.top_k=3"), "kept whole"),
        (("smoke/served", "soft_labels.replies=top_k"), "need full or half"),
        (("smoke/served", "soft_labels.sends=hidden"), "sends is hidden"),
        (("smoke/served", "train.compile=true"), "train.compile"),
        (
            (
                "smoke/served",
                "aggregation={type: train/aggregation/all_reduce, ranks: 2}",
                "workers={address: tcp://127.0.0.1:1, insecure: true}",
            ),
            "ranks on workers do not have the teacher",
        ),
    ],
)
def test_who_cannot_have_features_hears_it_before_the_start(words, message):
    with pytest.raises(SpecError, match=message):
        kdlab.load(*words, f"features={FEATURES}")


def test_what_does_not_fit_is_found_before_the_start(elsewhere):
    wrong = "[{type: features/attention}]"
    experiment = kdlab.load(
        "smoke/in_process", f"features={wrong}", "tracking.enabled=false"
    )
    with pytest.raises(ModelError, match="compares maps"):
        experiment.check(lambda line: None)


def finished(config, *more):
    """Return a finished run without tracking that logs the loss of each step."""
    quiet = ("tracking.enabled=false", "train.log_every_steps=1")
    return kdlab.load(config, *quiet, *more).start(lambda line: None).wait(timeout_s=600)


@pytest.fixture
def in_process(monkeypatch, kdlab_home, elsewhere):
    """Runs experiments that need no other process in this one."""

    def run(*words):
        with monkeypatch.context() as patch:
            patch.setattr("kdlab.run.handle.run.spawn", RunsHere(patch))
            return finished(*words)

    return run


@pytest.mark.processes("a served run, with its pool")
def test_features_served_are_features_online_to_the_bit(in_process):
    """Both runs train student and projectors on the same batches in the same order."""
    more = (f"features={FEATURES}", "train.checkpoint_every_steps=5")
    online = in_process("smoke/in_process", *more)
    served = finished("smoke/served", "soft_labels.order=strict", *more)
    assert served.result["samples_lost"] == served.result["samples_repeated"] == 0
    ends, losses = [], []
    for run, member in ((online, "in_process"), (served, "served")):
        folder = run.path / "members" / member / "seed0"
        ends.append(load_file(folder / "student.safetensors"))
        losses.append(losses_of(run, member))
        checkpoint = max((folder / "checkpoints").glob("step_*"))
        tensors = load_file(checkpoint / "state.safetensors")
        assert any(name.startswith("projectors.0") for name in tensors)
    assert losses[0] == losses[1]
    assert all(torch.equal(ends[0][k], ends[1][k]) for k in ends[0])
    first = losses_of(in_process("smoke/in_process"), "in_process")[0]
    assert losses[0][0] > first  # the inner losses were added


def two_teachers(size=12):
    """Return teachers of unlike depth and width, one with views of another size, and losses."""
    recipe = {"epochs": 1, "batch": 64, "threads": 1}
    kind = "models/cifar_resnet"
    first = {"type": kind, "depth": 8, "width": [8, 8, 16, 16]}
    second = {"type": kind, "depth": 14, "width": [4, 4, 8, 8]}
    teachers = [
        {"type": "train/teacher", "model": first, "name": "wide", "recipe": recipe},
        {"type": "train/teacher", "model": second, "name": "deep", "recipe": recipe,
         "size": size},
    ]  # fmt: skip
    features = [
        {"type": "features/cosine", "of": "deep", "projector": "mlp", "balance": "phi"},
        {"type": "features/hint", "of": "wide", "teacher": "blocks.1", "student": "blocks.1",
         "balance": "channel", "learn_weight": True},
    ]  # fmt: skip
    return f"teacher={json.dumps(teachers)}", f"features={json.dumps(features)}"


def test_several_teachers_give_one_logits_and_the_features_of_each(kdlab_home, elsewhere):
    words = two_teachers()
    setup = TrainingSetup(kdlab.load("smoke/in_process", *words).spec)
    specs, model, row, _ = setup.tapped()
    wide, deep = setup.networks().values()
    x = torch.randint(0, 256, (3, *setup.data.shape), dtype=torch.uint8)
    answer = model(x)
    assert answer.shape == (3, row)
    assert [spec.taps for spec in specs] == [("blocks.1",), ("inner.head:input",)]
    logits = setup.load_teacher(logits=True).infer(x)
    assert torch.equal(answer[:, :10], logits)
    taps = Taps(wide.net, ["blocks.1"]), Taps(deep.net, ["inner.head:input"])
    wide(x), deep(x)
    (maps,), (hidden,) = (tap.take() for tap in taps)
    assert torch.equal(answer[:, 10:-8], maps.flatten(1))
    assert torch.equal(answer[:, -8:], hidden)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([{"type": "features/cosine"}], r"features\.0\.of: is missing, .* wide, deep"),
        ([{"type": "features/cosine", "of": "dep"}], r"is 'dep'.*Nearest: deep"),
    ],
)
def test_whose_features_are_meant_is_asked_before_the_start(features, message):
    with pytest.raises(SpecError, match=message):
        kdlab.load(
            "smoke/in_process", two_teachers()[0], f"features={json.dumps(features)}"
        )


def test_two_teachers_of_one_name_are_refused():
    teachers = ["models/cifar_resnet", {"type": "models/cifar_resnet", "depth": 14}]
    with pytest.raises(SpecError, match="has 2 called 'cifar_resnet'"):
        kdlab.load("smoke/in_process", f"teacher={json.dumps(teachers)}", two_teachers()[1])


def test_statistics_are_taken_once_of_what_the_teachers_say(
    kdlab_home, elsewhere, monkeypatch
):
    setup = TrainingSetup(kdlab.load("smoke/in_process", *two_teachers()).spec)
    (member,) = setup.spec.members()

    def statistics():
        return setup.loop(member, elsewhere, lambda event: None).job.features.statistics

    maps, hidden = statistics()  # in the order of the teachers
    answers = setup.load_teacher().infer(
        torch.from_numpy(setup.data.inputs[setup.data.train])
    )
    assert torch.allclose(hidden[-1, :-1], answers[:, -8:].double().sum(0))
    assert maps[-1, -1] == 16 * hidden[-1, -1] == 16 * len(setup.data.train)
    with monkeypatch.context() as patched:
        patched.setattr(TrainingSetup, "load_teacher", None)  # nothing is measured again
        again = statistics()
    for file in (kdlab_home / "teachers" / "balance").glob("*.safetensors"):
        damaged = file.read_bytes()[:-1]
        file.unlink()  # what was read is mapped
        file.write_bytes(damaged)
    for measured in (again, statistics()):  # a damaged file is measured again
        assert torch.equal(measured[0], maps)
        assert torch.equal(measured[1], hidden)


@pytest.mark.processes("a served run, with its pool")
def test_features_of_two_teachers_served_are_those_of_in_process_to_the_bit(in_process):
    more = two_teachers()
    online = in_process("smoke/in_process", *more)
    served = finished("smoke/served", "soft_labels.order=strict", *more)
    assert served.result["samples_lost"] == served.result["samples_repeated"] == 0
    assert losses_of(online, "in_process") == losses_of(served, "served")
    cached = in_process("smoke/cached", *more)
    first = losses_of(cached, "cached")[0]
    assert first == pytest.approx(losses_of(online, "in_process")[0], rel=1e-2)


@pytest.fixture
def foundation(tmp_path):
    """Two published networks without classes, as their files: a transformer and a CNN."""
    torch.manual_seed(3)
    options = {"img_size": 32, "depth": 1, "embed_dim": 48, "num_heads": 3}
    vit = timm.create_model("vit_small_patch16_dinov3", **options)
    cnn = timm.create_model("test_resnet")
    teachers = []
    for name, net in (("vit_small_patch16_dinov3", vit), ("test_resnet", cnn)):
        path = tmp_path / f"{name}.safetensors"
        save_file(net.state_dict(), path)
        teachers.append({"type": f"timm/{name}", "pretrained": str(path), "headless": True,
                         "size": 32})  # fmt: skip
    teachers[0] |= {"options": options, "name": "dinov3"}
    features = [
        {"type": "features/cosine", "of": "dinov3", "balance": "phi", "projector": "mlp"},
        {
            "type": "features/hint",
            "of": "dinov3",
            "teacher": "patches",
            "student": "blocks.2",
        },
        {"type": "features/cosine", "of": "test_resnet", "balance": "overall"},
    ]
    return f"teacher={json.dumps(teachers)}", f"features={json.dumps(features)}"


ALONE = ("loss.soft_weight=0", "loss.hard_weight=0")


def test_foundation_models_need_losses_of_features_and_no_logits(foundation):
    teachers, features = foundation
    with pytest.raises(SpecError, match="dinov3, which is headless, and no loss"):
        kdlab.load("smoke/in_process", teachers, *ALONE)
    with pytest.raises(
        SpecError, match=r"loss\.soft_weight: is 0.5, and no teacher has classes"
    ):
        kdlab.load("smoke/in_process", teachers, features)


def test_foundation_models_alone_teach_without_labels(foundation, in_process):
    """Their features are learned; their accuracy is not measured."""
    words = (*foundation, *ALONE, "train.epochs=4")
    kdlab.load("smoke/in_process", *words, "tracking.enabled=false").check(
        lambda line: None
    )
    run = in_process("smoke/in_process", *words)
    losses = losses_of(run, "in_process")
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    assert not any(select(run.folder.events, "teacher_measured"))


@pytest.mark.processes("a served run, with its pool")
def test_a_foundation_model_is_served_beside_a_teacher_of_classes(foundation, in_process):
    """One teacher gives logits and both give features: the losses are those in process."""
    teachers = json.loads(foundation[0].partition("=")[2])
    classifier = json.loads(two_teachers()[0].partition("=")[2])[0]
    features = json.loads(foundation[1].partition("=")[2])[:2]
    features.append({"type": "features/hint", "of": "wide"})
    words = (
        f"teacher={json.dumps([teachers[0], classifier])}",
        f"features={json.dumps(features)}",
    )
    online = in_process("smoke/in_process", *words)
    served = finished("smoke/served", "soft_labels.order=strict", *words)
    assert losses_of(online, "in_process") == losses_of(served, "served")
    assert any(select(served.folder.events, "teacher_measured"))


@pytest.mark.slow("a served run of some thousand steps, whose teachers are killed")
def test_features_of_two_teachers_outlive_kills(in_process):
    """Each worker of the pool serves both teachers: a kill loses the answers of both."""
    long = (*two_teachers(), "train.epochs=100")
    online = in_process("smoke/in_process", *long)
    served = finished(
        "smoke/served", "soft_labels.order=strict", *long,
        "chaos={kill_teacher: 1, events: 9, every_s: 1.0}", "teacher_pool.teachers=2",
    )  # fmt: skip
    assert served.result["samples_lost"] == served.result["samples_repeated"] == 0
    assert any(select(served.folder.events, "chaos_caused"))
    assert losses_of(online, "in_process") == losses_of(served, "served")


HINT = json.dumps([{"type": "features/hint", "teacher": "blocks.2", "student": "blocks.2"}])


@pytest.mark.processes("a served run with two ranks")
def test_two_ranks_learn_from_features_what_one_learns(in_process):
    """A hint is a mean over samples: the rows of both ranks give the gradient of one process.

    The student is narrower than its teacher, so there is a projector, whose gradient is averaged
    too: its weights go into the losses from the second step on.
    """
    few = (f"features={HINT}", "train.epochs=1", "train.checkpoint_every_steps=3")
    online = in_process("smoke/in_process", *few)  # as served, to the bit
    both = finished(
        "smoke/served", "soft_labels.order=strict",
        "aggregation={type: train/aggregation/all_reduce, ranks: 2}", *few,
    )  # fmt: skip
    assert both.result["samples_lost"] == both.result["samples_repeated"] == 0
    first, second = losses_of(online, "in_process"), losses_of(both, "served")
    assert len(first) == len(second) > 3
    assert second == pytest.approx(first, rel=1e-3)
    checkpoint = max((both.path / "members/served/seed0/checkpoints").glob("step_*"))
    names = load_file(checkpoint / "state.safetensors")
    assert any(name.startswith("projectors.0") for name in names)


def check_stored_features(run, in_process, *words):
    """Check that features stored in two bytes train as those of a teacher in process do."""
    cold = run(*words, f"features={HINT}")
    warm = run(*words, f"features={HINT}")
    online = in_process("smoke/in_process", f"features={HINT}")
    member = words[0].removeprefix("smoke/")
    first, second = losses_of(cold, member), losses_of(warm, member)
    assert first[0] == pytest.approx(losses_of(online, "in_process")[0], rel=1e-2)
    assert second == pytest.approx(first, rel=1e-2)
    without = in_process("smoke/cached")
    assert first[0] > losses_of(without, "cached")[0]


@pytest.mark.long
def test_features_are_kept_as_soft_labels_are(in_process):
    check_stored_features(in_process, in_process, "smoke/cached")


@pytest.mark.slow("two served runs")
@pytest.mark.nightly
def test_served_features_are_kept_as_soft_labels_are(in_process):
    words = ("smoke/served", "soft_labels.order=strict", "soft_labels.cache_views=1")
    check_stored_features(finished, in_process, *words)


def losses_of(run, member):
    """Return the student's losses; its teacher may have been trained in the same run."""
    steps = select(run.folder.events, "step_logged")
    return [e.loss for e in steps if e.member == f"{member}/seed0"]
