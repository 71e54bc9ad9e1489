"""`make gpu`: what only a GPU can show. Without one all of it is left out, and says so."""

import os

import pytest
import torch

# cuBLAS decides once for a process, when it is first used.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(scope="session", autouse=True)
def has_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU here; `make gpu` runs it where there is one")


@pytest.fixture
def exactly():
    """Use kernels that give the same bits in each run: slower, without atomics."""
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
    yield
    torch.use_deterministic_algorithms(mode=False)
