"""Bounds the freed memory that a process keeps after its tensors are released."""

import ctypes

M_MMAP_THRESHOLD = -3
BLOCK_BYTES = 1 << 20
MUCH_BYTES = 1 << 27


def return_large_blocks(weights_bytes: int) -> None:
    """Have the C library give each block of a megabyte or more back as soon as it is free, where a
    model has many weights.

    glibc raises the bound for that to 32 MiB as such blocks are freed, and keeps smaller ones in
    its heap: half a gigabyte of activations and gradients lay there between steps of a model of 135
    million parameters, in pieces that the next step's did not fit into, and more with each version
    in its server. With fewer weights than `MUCH_BYTES` the heap stays: there is little in it, and
    asking anew for each activation made a step of the lake's take 45 % more of a core. Other C
    libraries are left as they are. Source: mallopt(3), M_MMAP_THRESHOLD.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and weights_bytes >= MUCH_BYTES:
        mallopt(M_MMAP_THRESHOLD, BLOCK_BYTES)
