"""A limit of the freed memory that a process keeps after its tensors are released."""

import ctypes

M_MMAP_THRESHOLD = -3
BLOCK_BYTES = 1 << 20
MUCH_BYTES = 1 << 27


def return_large_blocks(weights_bytes: int) -> None:
    """Let glibc return freed blocks of a megabyte or more to the system, for large models.

    By default glibc raises this threshold to 32 MiB as blocks are freed, and keeps smaller ones in
    its heap. With a model of 135 million parameters, half a gigabyte of activations and gradients
    stayed there between steps, in pieces that the next step could not use; in a model server the
    heap grew with each version. Below `MUCH_BYTES` of weights nothing is changed: the heap stays
    small, and a system call for each activation made a step of the lake's policy take 45 % more
    CPU. Other C libraries are not changed. Source: mallopt(3), M_MMAP_THRESHOLD.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and weights_bytes >= MUCH_BYTES:
        mallopt(M_MMAP_THRESHOLD, BLOCK_BYTES)
