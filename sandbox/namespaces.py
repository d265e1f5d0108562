"""System calls with which a process enters a box; needs only the standard library.

Only `rollcall.sandbox.supervisor_process` imports it, by path. Until the entering process executes
the requested program, processes of the box cannot inspect it: the kernel compares capabilities, and
it has more of them.
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
"""Limits the pseudo-terminals of a box; the kernel has some thousands in all."""
NS_GET_USERNS = 0xB701
"""The request of linux/nsfs.h for the user namespace that owns another namespace."""
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 22, 24, 38
SECCOMP_MODE_FILTER = 2
INSTRUCTION_BYTES = 8
CAPABILITIES = 64
CAPABILITY_VERSION_3 = 0x20080522
KINDS = ("mnt", "pid", "net", "ipc", "uts", "cgroup")
STAGE = "/sys"
"""The directory in which `stage` mounts: every system has it, and no box needs it."""
NOTHING = f"{STAGE}/nothing"
"""An empty directory, since an overlay needs at least two lower ones."""
OVERLAY = b"overlay"


class _Program(ctypes.Structure):
    """The struct sock_fprog of linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def of_process(pid: int) -> dict[str, int]:
    """Open the namespaces of a process. Raises OSError if it has ended or is another user's."""
    kinds = ("user", *KINDS)
    return {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds}


def become_user(uid: int) -> None:
    """Change to this user and group, without other groups. Raises OSError."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def enter(namespaces: Mapping[str, int], user: int) -> None:
    """Enter namespaces as a user; that of processes holds for our children. Raises OSError."""
    # The namespaces of a bubblewrap box belong to a user namespace around that of its processes.
    # Those of a container belong to ours, which cannot be entered again.
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
    """Mount these directories at STAGE/0, STAGE/1 and so on, in a mount namespace of our own.

    Another user may then bind directories that it cannot reach otherwise, such as one in the home
    of root. Nothing is left on the host, however this process ends. A directory is mounted as an
    overlay if the kernel supports it, so that its files differ from those that other boxes lock and
    watch. Raises OSError.
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
    """Mount a directory as a read-only overlay; return False if that could not show all of it."""
    if _mounted_below(os.readlink(source)):
        return False
    layers = f"lowerdir={source}:{NOTHING}".encode()
    try:
        _call("mount", OVERLAY, place.encode(), OVERLAY, MS_RDONLY | MS_NOSUID | MS_NODEV, layers)
    except OSError:  # the kernel has no overlays, or too many are stacked already
        return False
    return True


def _mounted_below(directory: str) -> bool:
    """Return True if file systems are mounted below a directory; an overlay would hide them."""
    below = directory.rstrip("/").encode() + b"/"
    with open("/proc/self/mountinfo", "rb") as file:
        return any(line.split()[4].startswith(below) for line in file)


def give_up_capabilities() -> None:
    """Drop capabilities as an exec would, for a process that goes on in a box without one."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())
    _call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # it owns its files in /proc again


def give_up_rights(seccomp: str) -> None:
    """Make it impossible to gain rights; the filter is BPF in base64, empty for none."""
    _bound_by_none()
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if seccomp:
        code = base64.b64decode(seccomp)
        instructions = ctypes.create_string_buffer(code, len(code))
        address = ctypes.cast(instructions, ctypes.c_void_p)
        program = _Program(len(code) // INSTRUCTION_BYTES, address)
        _call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)


def _bound_by_none() -> None:
    """Drop every capability from the bounding set, as far as we may."""
    for capability in range(CAPABILITIES):
        process_tree.LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def _call(name: str, *arguments: Any) -> None:
    """Call a function of libc. Raises OSError."""
    if getattr(process_tree.LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
