"""What vLLM's own worker process runs of ours; nothing else imports this, for it imports vLLM.

vLLM's CPU build packs the weights of linear layers as it loads them, and computes with the packed
copy: what is loaded later changes embeddings and norms alone, and the answers are of neither
version. So packing is switched off here, before vLLM loads anything. Seen with 0.32.

Nor do vLLM's processes end with the one that started them when that is killed (seen with 0.32), so
this one watches it, from its import on, and takes vLLM's other process along.
"""

import os
import select
import signal
import threading
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from vllm import _custom_ops
from vllm.model_executor.layers import utils

from inference.vllm_core import OWNER

_custom_ops._supports_onednn = False
utils.check_cpu_sgl_kernel = lambda *shape_and_dtype: False


def _end_with(owner: int) -> None:
    """Wait for a process to end, then end vLLM's."""
    try:
        descriptor = os.pidfd_open(owner)
        select.select([descriptor], [], [])
    except ProcessLookupError:
        pass
    os.kill(os.getppid(), signal.SIGKILL)
    os._exit(1)


threading.Thread(target=_end_with, args=[int(os.environ[OWNER])], daemon=True).start()


class InPlaceWeights:
    """Mixed into vLLM's worker by name."""

    model_runner: Any

    def load_rollcall_weights(self, file: str) -> list[str]:
        """Write the tensors of a safetensors file over those of the model.

        Returns the names of the model's tensors that none of them reached.
        """
        model = self.model_runner.model
        with torch.inference_mode():
            loaded = model.load_weights(load_file(Path(file)).items())
        return sorted(dict(model.named_parameters()).keys() - loaded)
