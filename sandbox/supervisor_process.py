"""The process that stands between a worker and what the worker starts, and ends it all.

    worker == socket == supervisor --fork--> child, in a session of its own --> whatever it starts
       +--> reaper --fork--> supervisor

Run by path with the interpreter's own library alone: `python -I -S supervisor_process.py FD
DIRECTORY`. A fork takes as long as all else until a program runs: so one child is forked ahead,
and waits. Each child adopts what is orphaned below it (`rollcall.sandbox.process_tree`), so its
end is the end of all that it started. In a box with control groups each child has one of its own,
which ends all of it in one go (`rollcall.sandbox.program_groups`). When the worker is gone (its
end of the socket is closed, however it died) everything here ends; when the supervisor is killed,
the reaper ends what is left and removes the directory.

One JSON object a packet. In: `{"start", "argv", "env", "cwd", "limits"}` with the three standard
descriptors and those that the child is to have open after them, and for boxes the fields of
`rollcall.sandbox.process_supervisor.Confinement`; `{"end"}`. Out: `{"started", "pid"}` or
`{"started", "failed"}`; and once nothing is left of a child, `{"ended", "code"}`, a signal's
number negative. Values of the keys that name the packet are the child's number. Who enters a box
may be asked to `listen` there on a port of its loopback instead of becoming a program: it hands
the socket out over its standard input.
"""

import array
import contextlib
import fcntl
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from rollcall.sandbox import namespaces, process_tree, program_groups
else:  # -I looks at no directory, and none of our packages is needed
    sys.path.insert(0, os.path.dirname(__file__))
    import namespaces
    import process_tree
    import program_groups

    del sys.path[0]

PACKET_BYTES = 1 << 20
LOOPBACK = "127.0.0.1"
MOST_DESCRIPTORS = 16
OUT_OF_THE_WAY = 64
"""Descriptors from here on are none that a child is given."""
DIES_FIRST = b"500"
"""Where memory is short, what runs in a box goes before what holds the box."""
REMOVE = '{ rm -rf -- "$1" || { chmod -R u+rwx -- "$1"; rm -rf -- "$1"; } } 2>/dev/null'


def removal(directory: str) -> list[str]:
    """The command that removes a tree, by the system's own program: ours would meet its depth."""
    return ["/bin/sh", "-c", REMOVE, "sh", directory]


def heeded() -> list[int]:
    """The signals of which this process does not leave it to the kernel what becomes of them."""
    every = range(1, signal.NSIG)
    return [each for each in every if signal.getsignal(each) is not signal.SIG_DFL]


class Spare(NamedTuple):
    """A child that waits for what it is to become; forked before anybody wants it."""

    pid: int
    way: socket.socket
    """Takes one packet, as it came from the worker, with its descriptors."""
    complaints: int
    """A pipe that ends at its exec, empty unless something went wrong."""


def fork(signals: Sequence[int]) -> Spare:
    """`signals`: what the child is not to heed as we do. Raises OSError."""
    parent = os.getpid()
    way, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, contextlib.ExitStack() as undone:
        undone.enter_context(way)
        ours, complaints = os.pipe()
        undone.callback(os.close, ours)
        try:
            pid = os.fork()
            if pid == 0:
                stand_by(theirs.fileno(), signals, parent, complaints)
        finally:
            os.close(complaints)
        undone.pop_all()
    return Spare(pid, way, ours)


def stand_by(way: int, signals: Sequence[int], parent: int, complaints: int) -> NoReturn:
    """Wait for a request with nothing of the supervisor's open, and turn into what it asks for."""
    try:
        process_tree.signal_on_parent_death(parent, signal.SIGKILL)
        os.setsid()
        for number in signals:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        os.umask(0o022)
        way = fcntl.fcntl(way, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY)
        complaints = fcntl.fcntl(complaints, fcntl.F_DUPFD_CLOEXEC, way + 1)
        for first, end in ((3, way), (way + 1, complaints), (complaints + 1, 65536)):
            os.closerange(first, end)
        with socket.socket(fileno=way) as supervisor:
            text, standard = receive(supervisor)
        if text:
            become(json.loads(text), standard, parent, complaints)
    except BaseException as error:
        os.write(complaints, f"{type(error).__name__}: {error}"[:2000].encode(errors="replace"))
    finally:
        os._exit(127)


def become(
    request: dict[str, Any], standard: Sequence[int], parent: int, complaints: int
) -> NoReturn:
    """Turn into the program that was asked for. Raises OSError and whatever a bad request does."""
    # First out of the way of one another: one of those given may have a number that is taken.
    standard = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY) for fd in standard]
    take_place(request, parent)
    process_tree.adopt_orphans()
    for number, fd in enumerate(standard):
        os.dup2(fd, number)
    os.closerange(len(standard), complaints)
    os.closerange(complaints + 1, 65536)
    begin_in(request["cwd"], in_box=bool(request.get("within")))
    if request.get("within"):
        namespaces.give_up_rights(request["seccomp"])
    if request.get("listen"):
        hand_out(request["listen"])
    os.execve(request.get("program") or request["argv"][0], request["argv"], request["env"])


def receive(peer: socket.socket) -> tuple[bytes, Sequence[int]]:
    """One packet and the descriptors that came with it; nothing when the other end is gone."""
    text, control, _, _ = peer.recvmsg(PACKET_BYTES, socket.CMSG_SPACE(MOST_DESCRIPTORS * 4))
    descriptors = array.array("i")
    for _, _, value in control:
        descriptors.frombytes(value[: len(value) - len(value) % descriptors.itemsize])
    return text, descriptors


def begin_in(place: str, *, in_box: bool) -> None:
    """Whoever works in a box may have barred its directory: then at its root, which is read-only.

    Raises OSError.
    """
    try:
        os.chdir(place)
    except PermissionError:
        if not in_box:
            raise
        os.chdir("/")


def hand_out(port: int) -> NoReturn:
    """Listen, and send the socket over descriptor 0; raises OSError."""
    with socket.socket(fileno=0) as worker, socket.create_server((LOOPBACK, port)) as listener:
        socket.send_fds(worker, [b"listens"], [listener.fileno()])
    os._exit(0)


def take_place(request: dict[str, Any], parent: int) -> None:
    """Be bound by what the request says; in a box of another process, return as its child there."""
    box = namespaces.of_process(request["within"]) if request.get("within") else None
    if box and os.fstat(box["mnt"]).st_ino != request["mounts"]:
        gone = "the box is gone, and its pid is another's"
        raise ProcessLookupError(gone)
    cgroups = joined(request)
    for name, most in request["limits"].items():
        what = getattr(resource, name)
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
    if box:
        with open("/proc/self/oom_score_adj", "wb") as file:
            file.write(DIES_FIRST)
    if box:
        namespaces.enter(box, request["user"])
    else:
        if request.get("staged"):
            namespaces.stage(request["staged"])
        if request.get("user"):
            namespaces.become_user(request["user"])
    process_tree.signal_on_parent_death(
        parent, signal.SIGKILL
    )  # whoever changes users is tied no more
    if box:
        fork_inside()
    for cgroup in cgroups:
        os.write(cgroup, b"0")


def joined(request: dict[str, Any]) -> list[int]:
    """Open the files by which we join the control groups of a request. Raises OSError.

    The group of a program lies below that of its box, which is joined with it.
    """
    box = request.get("group", "")
    above = program_groups.entry(box) if box else ""
    files = [
        os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        for path in request.get("cgroups", ())
        if path != above
    ]
    own = program_groups.group_of(box, os.getpid())
    return [*files, program_groups.made(own)] if own else files


def fork_inside() -> None:
    """Return as a child in the namespaces just entered; the parent ends as the child does."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        process_tree.LIBC.prctl(process_tree.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        return
    os.closerange(0, 65536)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


class Children:
    """All children of one worker, by their numbers."""

    def __init__(self, worker: socket.socket) -> None:
        self.worker = worker
        self.signals = heeded()
        """To look for them takes as long as a fork."""
        self.spare: Spare | None = None
        self.waiting = select.poll()
        self.running: dict[int, int] = {}
        """Children by pid."""
        self.starting: dict[int, tuple[int, int]] = {}
        """Number and pid of those that may yet fail to start, by the pipe that tells."""
        self.within: dict[int, int] = {}
        """The first process of the box that a child lives in, by the child's number."""
        self.groups: dict[int, str] = {}
        """The control group that is a child's own, by its number."""
        self.ending: dict[int, tuple[int, float]] = {}
        """Exit codes of children that have ended but may have left processes, with the time at
        which to stop waiting for those; by the child's number."""

    def serve(self, woken: socket.socket) -> None:
        """Answer the worker until it is gone."""
        self.waiting.register(self.worker, select.POLLIN)
        self.waiting.register(woken, select.POLLIN)
        while True:
            self.prepare()
            again_ms = process_tree.AGAIN_S * 1000 if self.ending else None
            ready = {fd for fd, _ in self.waiting.poll(again_ms)}
            if woken.fileno() in ready:
                woken.recv(4096)
            for fd in ready & self.starting.keys():
                self.report_start(fd)
            if self.worker.fileno() in ready and not self.receive_requests():
                return
            self.reap()

    def receive_requests(self) -> bool:
        """Do what one packet says; False when the worker is gone."""
        text, standard = receive(self.worker)
        if not text:
            return False
        request = json.loads(text)
        if "end" in request:
            for pid, number in self.running.items():
                if number == request["end"]:
                    self.kill(pid, number)
        else:
            self.begin(request, text, standard)
        for fd in standard:
            os.close(fd)
        return True

    def kill(self, pid: int, number: int) -> None:
        """End a child and all that it started."""
        if group := self.groups.get(number):
            program_groups.kill(group)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)  # it waits outside for what is inside
        else:
            process_tree.kill_tree(pid)

    def begin(self, request: dict[str, Any], text: bytes, standard: Sequence[int]) -> None:
        """Have a child become what is asked for, and wait for no exec: others may start too."""
        number = request["start"]
        try:
            pid, _, pipe = self.take_descriptors(text, standard)
        except OSError as error:
            self.tell({"started": number, "failed": str(error)})
            return
        self.running[pid] = number
        if request.get("within"):
            self.within[number] = request["within"]
        if group := program_groups.group_of(request.get("group", ""), pid):
            self.groups[number] = group
        self.starting[pipe] = number, pid
        self.waiting.register(pipe, select.POLLIN)

    def take_descriptors(self, text: bytes, standard: Sequence[int]) -> Spare:
        """The child that has a request now, a new one where there is no spare. Raises OSError."""
        if spare := self.spare:
            with contextlib.suppress(OSError):
                socket.send_fds(spare.way, [text], standard)
                spare.way.close()
                self.spare = None
                return spare
            self.replace_spare()
        child = fork(self.signals)
        with child.way:
            socket.send_fds(child.way, [text], standard)
        return child

    def replace_spare(self) -> None:
        """It was killed."""
        if self.spare:
            self.spare.way.close()
            os.close(self.spare.complaints)
            self.spare = None

    def prepare(self) -> None:
        """Fork a spare, where there is none and nobody waits for anything else."""
        if self.spare is None and not self.starting:
            with contextlib.suppress(OSError):  # whoever wants it is told why there is none
                self.spare = fork(self.signals)

    def report_start(self, pipe: int) -> None:
        """Tell what became of a start; waits for no longer than it takes to be known."""
        self.waiting.unregister(pipe)
        number, pid = self.starting.pop(pipe)
        with open(pipe, "rb") as complaints:
            wrong = complaints.read()
        if wrong:
            del self.running[pid]
            self.forget(number)
            self.tell({"started": number, "failed": wrong.decode(errors="replace")})
        else:
            self.tell({"started": number, "pid": pid})

    def forget(self, number: int) -> None:
        """Drop what is known of a child of which nothing is left."""
        self.within.pop(number, None)
        if group := self.groups.pop(number, None):
            program_groups.remains(group)

    def tell(self, packet: dict[str, Any]) -> None:
        self.worker.send(json.dumps(packet).encode())

    def reap(self) -> None:
        """Collect what has ended; tell of a child when nothing is left that was below it."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            for pipe in [each for each, begun in self.starting.items() if begun[1] == pid]:
                self.report_start(pipe)
            if self.spare and self.spare.pid == pid:
                self.replace_spare()
            if pid in self.running:
                number = self.running.pop(pid)
                give_up_at = time.monotonic() + process_tree.GIVE_UP_S
                self.ending[number] = os.waitstatus_to_exitcode(status), give_up_at
        for number, (code, give_up_at) in list(self.ending.items()):
            if not self.kill_orphans(number) or time.monotonic() > give_up_at:
                del self.ending[number]
                self.forget(number)
                self.tell({"ended": number, "code": code})

    def kill_orphans(self, number: int) -> bool:
        """Kill what a child that has ended has left; False where nothing is left.

        It is in the child's control group. Without one we have adopted it, or in a box the first
        process there, which starts nothing itself.
        """
        if group := self.groups.get(number):
            return program_groups.remains(group)
        if first := self.within.get(number):
            strays = set(process_tree.children(first))
        else:
            strays = set(process_tree.children(os.getpid())) - self.running.keys()
            strays -= {self.spare.pid} if self.spare else set()
        for pid in strays:
            process_tree.kill_tree(pid)
        return bool(strays)


def keep(worker: socket.socket) -> None:
    """Serve a worker until it is gone, and end everything."""
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    process_tree.end_on_sigterm()
    try:
        # Told of an end that nobody waits for any more, a socket is broken: the worker is gone.
        with contextlib.suppress(OSError):
            Children(worker).serve(woken)
    finally:
        process_tree.end_children()


def main(fd: int, directory: str) -> None:
    process_tree.adopt_orphans()
    os.umask(0o077)
    worker = socket.socket(fileno=fd)
    gc.freeze()
    reaper = os.getpid()
    supervisor = os.fork()
    if supervisor == 0:
        process_tree.signal_on_parent_death(reaper, signal.SIGTERM)
        process_tree.adopt_orphans()
        keep(worker)
        os._exit(0)
    worker.close()
    process_tree.guard(supervisor)
    os.spawnv(os.P_WAIT, "/bin/sh", removal(directory))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
