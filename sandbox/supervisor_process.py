"""The process between a worker and the processes that it starts, which ends all of them.

    worker == socket == supervisor --fork--> child, in a session of its own --> its own children
       +--> reaper --fork--> supervisor

It is run by path with the standard library alone: `python -I -S supervisor_process.py FD
DIRECTORY`. `rollcall.sandbox.agents.fork_server` is a supervisor too, in the agent's own Python;
its children do not run a program, but become agents.

A fork takes longer than the rest of a start, so one child is forked ahead and waits. Each child
adopts the orphans below it (`rollcall.sandbox.process_tree`), so its end is the end of all that it
started. In a box with control groups each child has a group of its own, which is killed at once
(`rollcall.sandbox.program_groups`). When the worker is gone (its end of the socket is closed,
however it died) everything here ends; when the supervisor is killed, the reaper ends the rest and
removes the directory.

Each packet is one JSON object. In: `{"start", "argv", "env", "cwd", "limits"}` with the descriptors
that the child has as its 0, 1, 2 and so on, and for boxes the fields of
`rollcall.sandbox.process_supervisor.Confinement`; `{"end"}`. Out: `{"started", "pid"}` or
`{"started", "failed"}`; and once nothing is left of a child, `{"ended", "code"}`, negative for a
signal. The values of "start", "end" and so on are the child's number. A child that enters a box may
be asked to `listen` there on a port of its loopback, in place of running a program: it sends the
socket over its standard input.
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
from collections.abc import Callable, Sequence
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
"""The first descriptor number that no child is given."""
DIES_FIRST = b"500"
"""If memory is short, the programs of a box are killed before the processes that hold the box."""
REMOVE = '{ rm -rf -- "$1" || { chmod -R u+rwx -- "$1"; rm -rf -- "$1"; } } 2>/dev/null'


def removal(directory: str) -> list[str]:
    """Return the command that removes a tree; Python's own removal fails on a deep one."""
    return ["/bin/sh", "-c", REMOVE, "sh", directory]


def handled_signals() -> list[int]:
    """Return the signals that do not have the kernel's default action in this process."""
    every = range(1, signal.NSIG)
    return [each for each in every if signal.getsignal(each) is not signal.SIG_DFL]


def close_all_but(*kept: int) -> None:
    """Close all descriptors except these."""
    first = 0
    for each in (*sorted({*kept}), 65536):
        if first < each:  # the kernel takes the range from 0 to before 0 for all
            os.closerange(first, each)
        first = each + 1


class Spare(NamedTuple):
    """A forked child that waits for its request."""

    pid: int
    way: socket.socket
    """Takes one packet, as it came from the worker, with its descriptors."""
    complaints: int
    """A pipe that is closed once the child has started; it is empty unless that failed."""


def run_program(
    request: dict[str, Any], standard: Sequence[int], parent: int, complaints: int
) -> NoReturn:
    """Replace this child by a program. Raises OSError, and any error of an invalid request."""
    os.umask(0o022)
    # First to high numbers: a descriptor may have a number that another one is to get.
    standard = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY) for fd in standard]
    take_place(request, parent)
    process_tree.adopt_orphans()
    for number, fd in enumerate(standard):
        os.dup2(fd, number)
    close_all_but(*range(len(standard)), complaints)
    begin_in(request["cwd"], in_box=bool(request.get("within")))
    if request.get("within"):
        namespaces.give_up_rights(request["seccomp"])
    if request.get("listen"):
        hand_out(request["listen"])
    os.execve(request.get("program") or request["argv"][0], request["argv"], request["env"])


def receive(peer: socket.socket) -> tuple[bytes, Sequence[int]]:
    """Return one packet and its descriptors; empty if the other end is closed."""
    text, control, _, _ = peer.recvmsg(PACKET_BYTES, socket.CMSG_SPACE(MOST_DESCRIPTORS * 4))
    descriptors = array.array("i")
    for _, _, value in control:
        descriptors.frombytes(value[: len(value) - len(value) % descriptors.itemsize])
    return text, descriptors


def begin_in(place: str, *, in_box: bool) -> None:
    """Enter a directory; in a box that denies it, the root, which is read-only. Raises OSError."""
    try:
        os.chdir(place)
    except PermissionError:
        if not in_box:
            raise
        os.chdir("/")


def hand_out(port: int) -> NoReturn:
    """Listen, send the socket over descriptor 0, and exit. Raises OSError."""
    with socket.socket(fileno=0) as worker, socket.create_server((LOOPBACK, port)) as listener:
        socket.send_fds(worker, [b"listens"], [listener.fileno()])
    os._exit(0)


def take_place(request: dict[str, Any], parent: int) -> None:
    """Apply the request's confinement; for the box of another process, return in a child there."""
    box = namespaces.of_process(request["within"]) if request.get("within") else None
    if box and os.fstat(box["mnt"]).st_ino != request["mounts"]:
        gone = "the box is gone, and its pid is another's"
        raise ProcessLookupError(gone)
    cgroups = joined(request)
    for name, most in request["limits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
    if box:
        with open("/proc/self/oom_score_adj", "wb") as file:
            file.write(DIES_FIRST)
        namespaces.enter(box, request["user"])
    else:
        if request.get("staged"):
            namespaces.stage(request["staged"])
        if request.get("user"):
            namespaces.become_user(request["user"])
    # A change of user clears the signal that was set before.
    process_tree.signal_on_parent_death(parent, signal.SIGKILL)
    if box:
        fork_inside()
    for cgroup in cgroups:
        os.write(cgroup, b"0")


def joined(request: dict[str, Any]) -> list[int]:
    """Open the files by which this process joins a request's control groups. Raises OSError.

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

    ahead = True
    """True if a child is forked before it is needed."""
    signals: Sequence[int] = ()
    """The signals that children reset; by default all that are handled or ignored here."""

    def __init__(
        self,
        worker: socket.socket,
        become: Callable[[dict[str, Any], Sequence[int], int, int], NoReturn] = run_program,
        kept: Sequence[int] = (0, 1, 2),
    ) -> None:
        """Children `become` what a request asks for; they inherit only the descriptors `kept`."""
        self.worker = worker
        self.become = become
        self.kept = kept
        self.own = set(process_tree.children(os.getpid()))
        """Children that this process has beside those of the worker."""
        self.spare: Spare | None = None
        self.waiting = select.poll()
        self.running: dict[int, int] = {}
        """Children by pid."""
        self.readers: dict[int, Callable[[], object]] = {}
        """The action for each descriptor that can be read."""
        self.starting: dict[int, tuple[int, int]] = {}
        """Number and pid of children that may yet fail to start, by the pipe that reports it."""
        self.within: dict[int, tuple[int, int]] = {}
        """The first process of the box that a child is in, and its mount namespace; by number."""
        self.groups: dict[int, str] = {}
        """The control group of a child, by its number."""
        self.ending: dict[int, tuple[int, float]] = {}
        """Exit codes of children that have ended but may have left processes, with the time at
        which to stop waiting for those; by the child's number."""

    def serve(self) -> None:
        """Answer the worker until it is gone; then end everything."""
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        process_tree.end_on_sigterm()
        self.signals = self.signals or handled_signals()  # finding them takes as long as a fork
        self.listen(woken, lambda: os.read(woken, 4096))
        self.listen(self.worker.fileno(), self.receive_request)
        try:
            # A write to a worker that has gone raises OSError.
            with contextlib.suppress(OSError, EOFError):
                while True:
                    self.prepare()
                    again_ms = process_tree.AGAIN_S * 1000 if self.ending else None
                    for fd, _ in self.waiting.poll(again_ms):
                        if fd in self.readers:
                            self.readers[fd]()
                    self.reap()
        finally:
            process_tree.end_children()

    def listen(self, fd: int, read: Callable[[], object]) -> None:
        """Call `read` whenever a descriptor can be read."""
        self.readers[fd] = read
        self.waiting.register(fd, select.POLLIN)

    def forget_reader(self, fd: int) -> None:
        """Stop listening to a descriptor; the caller closes it."""
        del self.readers[fd]
        self.waiting.unregister(fd)

    def fork(self) -> Spare:
        """Fork a child. Raises OSError."""
        parent = os.getpid()
        way, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.ExitStack() as undone:
            undone.enter_context(way)
            ours, complaints = os.pipe()
            undone.callback(os.close, ours)
            try:
                pid = os.fork()
                if pid == 0:
                    self.stand_by(theirs.fileno(), parent, complaints)
            finally:
                os.close(complaints)
            undone.pop_all()
        return Spare(pid, way, ours)

    def stand_by(self, way: int, parent: int, complaints: int) -> NoReturn:
        """Wait in the child for a request, with nothing of the supervisor's open, and obey it."""
        try:
            process_tree.signal_on_parent_death(parent, signal.SIGKILL)
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in self.signals:
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_DFL)
            way = fcntl.fcntl(way, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY)
            complaints = fcntl.fcntl(complaints, fcntl.F_DUPFD_CLOEXEC, way + 1)
            close_all_but(*self.kept, way, complaints)
            with socket.socket(fileno=way) as supervisor:
                text, standard = receive(supervisor)
            if text:
                self.become(json.loads(text), standard, parent, complaints)
        except BaseException as error:
            os.write(complaints, f"{type(error).__name__}: {error}"[:2000].encode(errors="replace"))
        finally:
            os._exit(127)

    def receive_request(self) -> None:
        """Obey one packet. Raises EOFError if the worker is gone."""
        text, standard = receive(self.worker)
        if not text:
            raise EOFError
        request = json.loads(text)
        if "end" in request:
            for pid, number in self.running.items():
                if number == request["end"]:
                    self.kill(pid, number)
        else:
            self.begin(request, text, standard)
        for fd in standard:
            os.close(fd)

    def kill(self, pid: int, number: int) -> None:
        """End a child and all that it started."""
        if group := self.groups.get(number):
            program_groups.kill(group)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)  # it waits outside the group
        else:
            process_tree.kill_tree(pid)

    def begin(self, request: dict[str, Any], text: bytes, standard: Sequence[int]) -> None:
        """Give a request to a child, and do not wait for its start: others may start too."""
        number = request["start"]
        try:
            pid, _, pipe = self.hand_over(text, standard)
        except OSError as error:
            self.forget(number)
            self.tell({"started": number, "failed": str(error)})
            return
        self.running[pid] = number
        if request.get("within"):
            self.within[number] = request["within"], request["mounts"]
        if group := program_groups.group_of(request.get("group", ""), pid):
            self.groups[number] = group
        self.starting[pipe] = number, pid
        self.listen(pipe, lambda: self.report_start(pipe))

    def hand_over(self, text: bytes, standard: Sequence[int]) -> Spare:
        """Send a request to the spare, or to a new child. Raises OSError."""
        if spare := self.spare:
            with contextlib.suppress(OSError):
                socket.send_fds(spare.way, [text], standard)
                spare.way.close()
                self.spare = None
                return spare
            self.drop_spare()
        child = self.fork()
        with child.way:
            socket.send_fds(child.way, [text], standard)
        return child

    def drop_spare(self) -> None:
        """Forget the spare, which was killed."""
        if self.spare:
            self.spare.way.close()
            os.close(self.spare.complaints)
            self.spare = None

    def prepare(self) -> None:
        """Fork a spare if there is none and no child is starting."""
        if self.ahead and self.spare is None and not self.starting:
            with contextlib.suppress(OSError):  # the next request reports the error
                self.spare = self.fork()

    def report_start(self, pipe: int) -> None:
        """Report a start whose pipe is closed, or about to be."""
        self.forget_reader(pipe)
        number, pid = self.starting.pop(pipe)
        with open(pipe, "rb") as complaints:
            wrong = complaints.read()
        if wrong:
            del self.running[pid]
            self.forget(number)
            self.tell({"started": number, "failed": wrong.decode(errors="replace")})
        else:
            self.tell({"started": number, "pid": pid})

    def report_end(self, number: int, code: int) -> None:
        """Report the end of a child of which nothing is left."""
        self.forget(number)
        self.tell({"ended": number, "code": code})

    def forget(self, number: int) -> None:
        """Drop the state of a child of which nothing is left."""
        self.within.pop(number, None)
        if group := self.groups.pop(number, None):
            program_groups.remains(group)

    def tell(self, packet: dict[str, Any]) -> None:
        """Send a packet to the worker. Raises OSError if the worker is gone."""
        self.worker.send(json.dumps(packet).encode())

    def reap(self) -> None:
        """Collect children that have ended; report each when nothing is left below it."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self.own.discard(pid)
            for pipe in [each for each, begun in self.starting.items() if begun[1] == pid]:
                self.report_start(pipe)
            if self.spare and self.spare.pid == pid:
                self.drop_spare()
            if pid in self.running:
                number = self.running.pop(pid)
                give_up_at = time.monotonic() + process_tree.GIVE_UP_S
                self.ending[number] = os.waitstatus_to_exitcode(status), give_up_at
        for number, (code, give_up_at) in list(self.ending.items()):
            if not self.kill_orphans(number) or time.monotonic() > give_up_at:
                del self.ending[number]
                self.report_end(number, code)

    def kill_orphans(self, number: int) -> bool:
        """Kill the processes that a child has left; return False if there are none.

        They are in the child's control group. Without one this process has adopted them, or in a
        box the first process there, which starts none itself.
        """
        if group := self.groups.get(number):
            return program_groups.remains(group)
        if number in self.within:
            strays = set(children_in_box(*self.within[number]))
        else:
            strays = set(process_tree.children(os.getpid())) - self.running.keys() - self.own
            strays -= {self.spare.pid} if self.spare else set()
        for pid in strays:
            process_tree.kill_tree(pid)
        return bool(strays)


def children_in_box(first: int, mounts: int) -> list[int]:
    """Return the children of a box's first process; none if the box is gone, and its pid reused."""
    with contextlib.suppress(OSError):
        if os.stat(f"/proc/{first}/ns/mnt").st_ino == mounts:
            return process_tree.children(first)
    return []


def with_reaper(worker: socket.socket, directory: str = "", parent: int = 0) -> None:
    """Fork; return in the child, the supervisor. The reaper ends what is left after it, and exits.

    The reaper removes the directory last. If `parent` is given, it also ends everything when that
    process, the worker, dies; its socket may not be read yet.
    """
    process_tree.adopt_orphans()
    reaper = os.getpid()
    supervisor = os.fork()
    if supervisor == 0:
        process_tree.signal_on_parent_death(reaper, signal.SIGTERM)
        process_tree.adopt_orphans()
        return
    worker.close()
    if parent:
        process_tree.end_on_sigterm()
        process_tree.signal_on_parent_death(parent, signal.SIGTERM)
    code = process_tree.guard(supervisor)
    if directory:
        os.spawnv(os.P_WAIT, "/bin/sh", removal(directory))
    os._exit(code)


def main(fd: int, directory: str) -> None:
    """Run as a supervisor of programs."""
    os.umask(0o077)
    worker = socket.socket(fileno=fd)
    gc.freeze()
    with_reaper(worker, directory)
    Children(worker).serve()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
