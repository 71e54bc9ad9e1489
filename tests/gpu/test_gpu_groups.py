"""Several ranks on GPUs: NCCL, and two or three processes that share one device."""

import pytest
import torch
import torch.distributed as dist
from tests_support import free_port

import kdlab
from kdlab.changes.request import ChangeRequest
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.train.aggregation.ranks import ProcessGroupRanks

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture
def nccl():
    torch.cuda.set_device(0)
    at = f"tcp://127.0.0.1:{free_port()}"
    dist.init_process_group("nccl", init_method=at, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_rank_speaks_nccl(nccl):
    """All that a training loop asks of the others, on tensors of a GPU."""
    device = torch.device("cuda:0")
    ranks = ProcessGroupRanks(device)
    torch.manual_seed(0)
    model = CifarResNet(depth=8).build(10, 3).to(device)
    ranks.join_norms(model)
    wrapped = ranks.wrap(model)
    loss = wrapped(torch.zeros((4, 3, 32, 32), dtype=torch.uint8, device=device)).sum()
    ranks.weigh(loss, 4, 4).backward()
    ranks.after_step(loss.detach(), 1.0, ChangeRequest(save=True))
    (agreed,) = ranks.agreed(last=True)
    assert float(agreed.loss) == pytest.approx(float(loss))
    assert agreed.all.save
    assert ranks.agree(ChangeRequest(stop=True)).stop
    assert ranks.sum_counts(torch.arange(3)).tolist() == [0, 1, 2]
    assert torch.equal(ranks.gather(torch.get_rng_state())[0], torch.get_rng_state())
    ranks.average_buffers(model, 1.0)
    assert [float(x) for x in ranks.losses()] == [pytest.approx(float(loss))]


def result_of(config, *words):
    run = kdlab.load(config, "tracking.enabled=false", "train.device=cuda", *words)
    return run.start(lambda line: None).wait(timeout_s=600)


@pytest.mark.processes
def test_two_ranks_share_one_device(kdlab_home, elsewhere):
    run = result_of(
        "smoke/served",
        "aggregation={type: train/aggregation/all_reduce, ranks: 2}",
        "teacher_pool.device=cuda",
        "train.epochs=4",
    )
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0


@pytest.mark.processes
def test_a_pipeline_of_blocks_shares_one_device(kdlab_home, elsewhere):
    run = result_of("smoke/blockwise")
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0


@pytest.mark.processes
def test_an_architecture_is_searched_on_one_device(kdlab_home, elsewhere):
    run = result_of("smoke/search")
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0


@pytest.mark.processes
def test_local_models_are_aggregated_on_one_device(kdlab_home, elsewhere):
    run = result_of("smoke/ensemble")
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0
