"""How a sweep is carried out: jobs, devices, one pool for all trials or one for each."""

import os

import pytest
from small_sweeps import SIMULATED, TRAINED, searched

from kdlab.tuning import plan

SERVED = {"experiment": "smoke/served"}
HERE = len(os.sched_getaffinity(0))


def planned(tree=TRAINED, **changes):
    search = searched(tree, **changes)
    return search.spec, search.space


def test_never_more_jobs_than_devices():
    assert plan.jobs_of(*planned(jobs=HERE + 5)) == HERE
    assert plan.jobs_of(*planned(jobs=1)) == 1
    assert plan.jobs_of(*planned(SIMULATED)) == HERE


def test_trials_of_several_threads_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert plan.jobs_of(*planned(overrides={"train.threads": 3})) == 2
    assert plan.jobs_of(*planned(overrides={"train.threads": 16})) == 1
    assert plan.jobs_of(*planned(overrides={"train.threads": None})) == 8
    assert plan.jobs_of(*planned(overrides={"train.threads": 3}, jobs=7)) == 7


def test_a_cluster_is_given_what_was_asked_for():
    cluster = {"address": "tcp://127.0.0.1:9", "insecure": True}
    assert plan.jobs_of(*planned(workers=cluster)) == 1
    assert plan.jobs_of(*planned(workers=cluster, jobs=40)) == 40


def test_gpus_are_those_that_the_user_has_left_visible(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert plan.gpus() == ()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert plan.gpus() == ("0", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-8a")
    assert plan.gpus() == ("3", "GPU-8a")


def test_trials_on_gpus_are_as_many_as_these(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    on_gpus = {"overrides": {"train.device": "cuda", "train.threads": 4}}
    assert plan.jobs_of(*planned(**on_gpus)) == 3  # threads are no matter there
    assert plan.jobs_of(*planned(jobs=9, **on_gpus)) == 3


def test_the_source_that_a_trials_result_is_of():
    assert plan.described(planned()[1]) is None
    assert plan.described(planned(SIMULATED)[1]) is None
    both = {"overrides": {"compare": ["none", "served"]}}
    assert plan.described(planned(**SERVED, **both)[1]) == "served"


def test_one_pool_serves_all_trials_where_all_have_the_same_teacher():
    assert plan.shares_pool(*planned(**SERVED))
    assert not plan.shares_pool(*planned(**SERVED, share_pool=False))
    assert not plan.shares_pool(*planned())  # nobody is served
    assert not plan.shares_pool(*planned(SIMULATED))


@pytest.mark.parametrize(
    "space",
    [
        {"teacher_pool.teachers": {"low": 1, "high": 2}},
        {"train.batch": {"choices": [16, 32]}},
        {"soft_labels": {"choices": ["cluster/served", "soft_labels/in_process"]}},
        {"teacher": {"choices": ["teachers/digits_tiny", "teachers/digits_tiny_mobile"]}},
    ],
)
def test_what_decides_on_the_pool_is_not_shared(space):
    assert not plan.shares_pool(*planned(**SERVED, space=space))


def test_a_key_beside_it_does_not_decide_on_the_pool():
    space = {"soft_labels.at_most": {"low": 1, "high": 2}}
    assert plan.shares_pool(*planned(**SERVED, space=space))


def test_faults_and_other_machines_are_of_one_run_alone():
    cluster = {"address": "tcp://127.0.0.1:9", "insecure": True}
    assert not plan.shares_pool(*planned(**SERVED, workers=cluster))
    pool = {"type": "cluster/remote_pool", "address": "tcp://127.0.0.1:9", "insecure": True}
    assert not plan.shares_pool(*planned(**SERVED, overrides={"teacher_pool": pool}))
