from pathlib import Path

import pytest
import torch

from tests.support import policies
from tests.support.tiers import cases


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    # Models this small are slower on two.
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return policies.lake(tmp_path_factory.mktemp("policies") / "lake")


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return policies.writer(tmp_path_factory.mktemp("policies") / "writer")


@pytest.fixture(scope="session", params=cases(["gpt2", "qwen2", "llama"]))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lake policy with learned and with rotary positions, with and without tied weights."""
    return policies.lake(tmp_path_factory.mktemp("policies") / request.param, request.param)
