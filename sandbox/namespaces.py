"""How a process becomes one of a box: the kernel's own words, with the standard library alone.

Imported by path, as `rollcall.sandbox.supervisor_process` does, and by it alone. Whoever enters
is, until it is the program that was asked for, nobody that a process of the box could look into:
it has more rights than they have there, and the kernel compares.
"""

import base64
import ctypes
import fcntl
import os
import stat
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollcall.sandbox import process_tree
else:
    import process_tree

CLONE_NEWUSER = 0x10000000
CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18
TERMINALS = b"mode=620,ptmxmode=666,max=64"
"""The most pseudo-terminals of a box: the kernel has some thousands for all that it runs."""
NS_GET_USERNS = 0xB701
"""Of linux/nsfs.h: the user namespace that another namespace belongs to."""
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 22, 24, 38
SECCOMP_MODE_FILTER = 2
INSTRUCTION_BYTES = 8
CAPABILITIES = 64
CAPABILITY_VERSION_3 = 0x20080522
KINDS = ("mnt", "pid", "net", "ipc", "uts", "cgroup")
STAGE = "/sys"
"""Where `stage` shows what it was given: every system has it, and no box is made of it."""
NOTHING = f"{STAGE}/nothing"
"""An overlay has two directories at least."""
OVERLAY = b"overlay"


class _Program(ctypes.Structure):
    """Of linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def of_process(pid: int) -> dict[str, int]:
    """Open the namespaces of a process. Raises OSError where it is gone, or another user's."""
    kinds = ("user", *KINDS)
    return {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds}


def become_user(uid: int) -> None:
    """Be this user and group, and of no other group. Raises OSError."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def enter(namespaces: Mapping[str, int], user: int) -> None:
    """Enter them as a user, our children also that of processes. Raises OSError."""
    # Those of a box belong to a user namespace around the one that its processes live in; those
    # of a container to ours, which cannot be entered again.
    owner = fcntl.ioctl(namespaces["mnt"], NS_GET_USERNS)
    with open("/proc/self/ns/user") as ours:
        theirs_alone = not os.path.sameopenfile(owner, ours.fileno())
    if not theirs_alone and not user:
        msg = "a container is entered by root, to be another user in it"
        raise PermissionError(msg)
    if theirs_alone and user:
        become_user(user)
    if theirs_alone:
        _call("setns", owner, CLONE_NEWUSER)
    for kind in KINDS:
        _call("setns", namespaces[kind], 0)
    _call("mount", None, b"/dev/pts", None, MS_REMOUNT | MS_NOSUID | MS_NOEXEC, TERMINALS)
    if not os.path.sameopenfile(owner, namespaces["user"]):
        _call("setns", namespaces["user"], CLONE_NEWUSER)
    if not theirs_alone:
        _bound_by_none()
        become_user(user)


def stage(sources: Sequence[str]) -> None:
    """Show these directories at STAGE/0, STAGE/1 and so on, in mounts of our own alone.

    So another user may bind what he cannot walk to, such as what lies in the home of root; and
    nothing is left on the host, however this process ends. A directory is shown as an overlay where
    the kernel has them: its files are then others than those that other boxes lock and watch.
    Raises OSError.
    """
    _call("unshare", CLONE_NEWNS)
    _call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
    opened = [os.open(source, os.O_PATH | os.O_CLOEXEC) for source in sources]
    _call("mount", b"tmpfs", STAGE.encode(), b"tmpfs", MS_NOSUID, b"mode=755,size=64k")
    os.mkdir(NOTHING, 0o755)
    for number, descriptor in enumerate(opened):
        place = f"{STAGE}/{number}"
        directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if directory:
            os.mkdir(place, 0o755)
        else:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))
        source = f"/proc/self/fd/{descriptor}"
        if not (directory and _overlaid(source, place)):
            _call("mount", source.encode(), place.encode(), None, MS_BIND | MS_REC, None)
        os.close(descriptor)


def _overlaid(source: str, place: str) -> bool:
    """Mount a directory as a read-only overlay; False where that cannot show all of it."""
    if _mounted_below(os.readlink(source)):
        return False
    layers = f"lowerdir={source}:{NOTHING}".encode()
    try:
        _call("mount", OVERLAY, place.encode(), OVERLAY, MS_RDONLY | MS_NOSUID | MS_NODEV, layers)
    except OSError:  # the kernel has none, or too many stand on one another already
        return False
    return True


def _mounted_below(directory: str) -> bool:
    """Whether other file systems are mounted below a directory, which an overlay does not show."""
    below = directory.rstrip("/").encode() + b"/"
    with open("/proc/self/mountinfo", "rb") as file:
        return any(line.split()[4].startswith(below) for line in file)


def give_up_capabilities() -> None:
    """As an exec would: for a process that goes on in a box as the program that it is."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())
    _call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # its own files in /proc are its own again


def give_up_rights(seccomp: str) -> None:
    """No right can be had from now on; the filter is BPF in base64, empty for none."""
    _bound_by_none()
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if seccomp:
        code = base64.b64decode(seccomp)
        instructions = ctypes.create_string_buffer(code, len(code))
        address = ctypes.cast(instructions, ctypes.c_void_p)
        program = _Program(len(code) // INSTRUCTION_BYTES, address)
        _call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)


def _bound_by_none() -> None:
    """Take every capability out of what a program may ever have, as far as we may."""
    for capability in range(CAPABILITIES):
        process_tree.LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def _call(name: str, *arguments: Any) -> None:
    """Raises OSError."""
    if getattr(process_tree.LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
