"""One tiny random model on disk for all tests of this folder."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

from tests.support.scored_trajectories import VOCABULARY


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    logging.disable_progress_bar()
    torch.manual_seed(0)
    # The dropouts are not 0 on purpose: a learner must switch them off.
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=32,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    directory = tmp_path_factory.mktemp("model")
    GPT2LMHeadModel(config).save_pretrained(directory)
    return str(directory)
