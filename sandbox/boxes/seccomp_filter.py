"""The seccomp filter of programs in a box, compiled by libseccomp if its binding is installed.

All other calls are allowed: namespaces isolate a box, and the filter refuses calls that have been
used to escape them, or that no namespace covers.
"""

import base64
import errno
import functools
import os
import socket
from typing import Any

CLONE_NEWUSER = 0x10000000
REFUSED = (  # noqa: SIM905 - one line for each would be a page
    "acct add_key adjtimex bpf clock_adjtime clock_settime delete_module fanotify_init "
    "finit_module fsconfig fsmount fsopen fspick init_module io_uring_enter io_uring_register "
    "io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mount "
    "mount_setattr move_mount name_to_handle_at nfsservctl open_by_handle_at open_tree "
    "perf_event_open pidfd_getfd pivot_root process_madvise process_vm_readv process_vm_writev "
    "ptrace quotactl quotactl_fd reboot request_key setdomainname sethostname setns settimeofday "
    "swapoff swapon syslog umount umount2 unshare userfaultfd vhangup vmsplice"
).split()
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""Allowed address families; others are outside network namespaces, or no program needs them."""
FIRST_UNNAMED = 64


def binding() -> Any:
    """Import libseccomp's binding; None if there is none."""
    for name in ("pyseccomp", "seccomp"):
        try:
            return __import__(name)
        except (ImportError, OSError, RuntimeError):  # it also fails if libseccomp is missing
            continue
    return None


@functools.cache
def compiled() -> str:
    """Return the filter as BPF in base64; empty if there is no binding."""
    seccomp = binding()
    if seccomp is None:
        return ""
    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    for name in REFUSED:
        _refuse(rules, seccomp, errno.EPERM, name)
    user = seccomp.Arg(0, seccomp.MASKED_EQ, CLONE_NEWUSER, CLONE_NEWUSER)
    _refuse(rules, seccomp, errno.EPERM, "clone", user)
    # The flags of clone3 lie in memory, which a filter cannot read; programs fall back to clone.
    _refuse(rules, seccomp, errno.ENOSYS, "clone3")
    # fs.aio-max-nr is shared by all processes of the host; programs handle kernels without it.
    _refuse(rules, seccomp, errno.ENOSYS, "io_setup")
    for family in set(range(FIRST_UNNAMED)) - set(map(int, FAMILIES)):
        _refuse(rules, seccomp, errno.EAFNOSUPPORT, "socket", seccomp.Arg(0, seccomp.EQ, family))
    unnamed = seccomp.Arg(0, seccomp.GE, FIRST_UNNAMED)
    _refuse(rules, seccomp, errno.EAFNOSUPPORT, "socket", unnamed)
    return base64.b64encode(_exported(rules)).decode()


def _refuse(rules: Any, seccomp: Any, number: int, name: str, *arguments: Any) -> None:
    """Add a rule; a call that libseccomp does not know is skipped, as it cannot be named."""
    try:
        rules.add_rule(seccomp.ERRNO(number), name, *arguments)
    except (OSError, RuntimeError, ValueError):
        if arguments:
            raise


def _exported(rules: Any) -> bytes:
    with os.fdopen(os.memfd_create("seccomp"), "r+b") as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()
