"""How much memory a process keeps of what its tensors have given back."""

import ctypes

M_MMAP_THRESHOLD = -3
LARGE_BYTES = 1 << 20


def return_large_blocks() -> None:
    """Have the C library give each block of a megabyte or more back as soon as it is free.

    glibc raises the bound for that to 32 MiB as such blocks are freed, and keeps smaller ones in
    its heap: half a gigabyte of activations and gradients lay there between steps of a model of 135
    million parameters, in pieces that the next step's did not fit into. Other C libraries are left
    as they are. Source: mallopt(3), M_MMAP_THRESHOLD.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
