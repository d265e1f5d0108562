"""What the kernel refuses to all that runs in a box, compiled by libseccomp where its binding is.

Everything else is allowed: a box is held by its namespaces first, and this takes away what has been
used to leave them, or what no namespace covers.
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
"""Other families are in no namespace of the network, or are none that a program needs."""
FIRST_UNNAMED = 64


def binding() -> Any:
    """The module of libseccomp's binding, or None."""
    for name in ("pyseccomp", "seccomp"):
        try:
            return __import__(name)
        except (ImportError, OSError, RuntimeError):  # also without the library that it binds
            continue
    return None


@functools.cache
def compiled() -> str:
    """The filter as BPF in base64; empty where there is no binding."""
    seccomp = binding()
    if seccomp is None:
        return ""
    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    for name in REFUSED:
        _refuse(rules, seccomp, errno.EPERM, name)
    user = seccomp.Arg(0, seccomp.MASKED_EQ, CLONE_NEWUSER, CLONE_NEWUSER)
    _refuse(rules, seccomp, errno.EPERM, "clone", user)
    # Its flags lie in memory, where no filter looks; programs then take clone.
    _refuse(rules, seccomp, errno.ENOSYS, "clone3")
    # All that the kernel runs shares fs.aio-max-nr; programs know kernels that have no such call.
    _refuse(rules, seccomp, errno.ENOSYS, "io_setup")
    for family in set(range(FIRST_UNNAMED)) - set(map(int, FAMILIES)):
        _refuse(rules, seccomp, errno.EAFNOSUPPORT, "socket", seccomp.Arg(0, seccomp.EQ, family))
    unnamed = seccomp.Arg(0, seccomp.GE, FIRST_UNNAMED)
    _refuse(rules, seccomp, errno.EAFNOSUPPORT, "socket", unnamed)
    return base64.b64encode(_exported(rules)).decode()


def _refuse(rules: Any, seccomp: Any, number: int, name: str, *arguments: Any) -> None:
    """A system call that this kernel's library does not know cannot be named, nor be made."""
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
