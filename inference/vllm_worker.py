"""Our code in vLLM's own worker process; no other module imports it, as it imports vLLM.

vLLM's CPU build packs the weights of linear layers as it loads them, and computes with the packed
copy: a later load changes only embeddings and norms, and the answers are of neither version. So
packing is switched off here, before vLLM loads anything. Seen with 0.32.

When the process that started it is killed, vLLM's core does not end; if it had not yet said hello,
it waits for minutes (seen with 0.32). So the core, which must import this to know its executor, and
the worker ask the system, on import, to be killed with their parents.
"""

import ctypes
import os
import signal
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from vllm import _custom_ops
from vllm.model_executor.layers import utils
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from rollcall.inference.traced_loading import load_and_prove
from rollcall.inference.vllm_place import OWNER

PR_SET_PDEATHSIG = 1

_custom_ops._supports_onednn = False
utils.check_cpu_sgl_kernel = lambda *shape_and_dtype: False


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _end_with_parent(owner: int) -> None:
    """Have the system kill this process when its parent ends; exit if it has ended already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = os.getppid()
    if owner not in (parent, _parent_of(parent)):  # the core is the owner's child, the worker its
        os._exit(1)


if os.environ[OWNER] != str(os.getpid()):
    _end_with_parent(int(os.environ[OWNER]))


class TiedExecutor(MultiprocExecutor):  # type: ignore[misc]  # vLLM has no types
    """vLLM's own executor, in a module that its core must import before it does anything."""


class InPlaceWeights:
    """A mixin of vLLM's worker, loaded by name."""

    model_runner: Any

    def load_rollcall_weights(self, file: str) -> tuple[dict[str, tuple[str, str]], list[str]]:
        """Write the tensors of a safetensors file over those of the model.

        Returns dtype and digest of each as the model holds it then, and the names of the model's
        tensors that were not written completely.
        """
        model = self.model_runner.model
        with torch.inference_mode():
            loaded = load_and_prove(model, load_file(Path(file)), model.load_weights)
        return dict(loaded.digests), list(loaded.stale)

    def packed_layers(self) -> list[str]:
        """Return the layers that compute with a copy of their weights; all weights are zeroed.

        Such a copy keeps the weights that vLLM started with.
        """
        model = self.model_runner.model
        with torch.inference_mode():
            return [name for name, layer in model.named_modules() if _is_packed(layer)]


def _is_packed(layer: torch.nn.Module) -> bool:
    """Return True if its output is not zero although its weights were set to zero."""
    method, weight = getattr(layer, "quant_method", None), getattr(layer, "weight", None)
    if not hasattr(layer, "cpu_linear") or method is None or not isinstance(weight, torch.Tensor):
        return False
    if not weight.numel():
        return True
    weight.zero_()
    output = method.apply(layer, torch.ones(1, weight.shape[-1], dtype=weight.dtype), None)
    return bool(output.any())
