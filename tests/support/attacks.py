"""What is tried against a box: each attack says ESCAPED where it got what no box may give.

`$CANARY` is a directory of the host, `$VICTIM` a process of it, `$TCP`, `$UDP` and `$ABSTRACT` are
sockets that it listens on, `$ADDRESS` its own address, `$PIDS`, `$FILES`, `$DISK`, `$FILE` and
`$MEMORY` what the box was told to be bound by.
"""

from dataclasses import dataclass

PYTHON = """
import ctypes, os, resource, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def escaped(*what): print("ESCAPED", *what, flush=True)
def syscall(*of):
    got = libc.syscall(*of)
    if got < 0: raise OSError(ctypes.get_errno(), "refused")
    return got
def environment(name): return int(os.environ[name])
def held():
    print("HELD", flush=True)
    sys.stdin.read()
def until_refused(take, most=10_000, programs=1):
    children = []
    for n in range(programs - 1):
        if (pid := os.fork()) == 0: break
        children.append(pid)
    kept = []
    try:
        while len(kept) < most: kept.append(take())
    except OSError: pass
    if len(children) < programs - 1: time.sleep(60)
    time.sleep(0.5 * (programs > 1))
    held()
"""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack; `claim` is what must hold it, empty where every isolating driver must.

    One with a script `beside` says HELD when it holds something and goes on when its input ends;
    meanwhile that script runs in another box and says FREE where the other box is free of it.
    """

    name: str
    claim: str
    script: str
    timeout_s: float = 30.0
    python: bool = False
    beside: str = ""

    def argv(self) -> list[str]:
        if self.python:
            return ["python3", "-c", PYTHON + self.script]
        return ["sh", "-c", self.script]

    def argv_beside(self) -> list[str]:
        return ["python3", "-c", PYTHON + self.beside + "\nprint('FREE')"]


def _sh(name: str, claim: str, script: str, timeout_s: float = 30.0) -> Attack:
    return Attack(name, claim, script, timeout_s)


def _py(name: str, claim: str, script: str, timeout_s: float = 30.0) -> Attack:
    return Attack(name, claim, script, timeout_s, python=True)


def _beside(name: str, claim: str, script: str, beside: str) -> Attack:
    return Attack(name, claim, script, 120.0, python=True, beside=beside)


def _connect(family: str, address: str, kind: str = "SOCK_STREAM") -> str:
    return (
        f"s = socket.socket(socket.{family}, socket.{kind}); s.settimeout(2)\n"
        f"s.connect({address}); s.send(b'GET /r/KEY/v1/models HTTP/1.0\\r\\n\\r\\n')\n"
        + ("escaped()" if kind == "SOCK_STREAM" else "")
    )


TCP = 'environment("TCP")'
NETWORK = (
    _py("connect to the host's loopback", "network", _connect("AF_INET", f'("127.0.0.1", {TCP})')),
    _py("connect to the host's loopback, IPv6", "network", _connect("AF_INET6", f'("::1", {TCP})')),
    _py(
        "connect to the host's address",
        "network",
        _connect("AF_INET", f'(os.environ["ADDRESS"], {TCP})'),
    ),
    _py(
        "send a datagram to the host",
        "network",
        _connect("AF_INET", '("127.0.0.1", environment("UDP"))', "SOCK_DGRAM"),
    ),
    _py(
        "connect to the metadata of a cloud",
        "network",
        _connect("AF_INET", '("169.254.169.254", 80)'),
    ),
    _py("look up a name", "network", 'socket.getaddrinfo("example.org", 80); escaped()'),
    _py(
        "connect to an abstract socket",
        "network",
        _connect("AF_UNIX", '"\\0" + os.environ["ABSTRACT"]'),
    ),
    _py(
        "connect to a socket in a directory of the host",
        "network",
        _connect("AF_UNIX", 'os.environ["CANARY"] + "/socket"'),
    ),
    _sh(
        "see an interface of the host",
        "network",
        "grep -v -e lo: -e '|' /proc/net/dev && echo ESCAPED",
    ),
    _py("open a raw socket", "network", "socket.socket(2, socket.SOCK_RAW, 1); escaped()"),
    _py("open a packet socket", "network", "socket.socket(17, socket.SOCK_RAW, 768); escaped()"),
    _py("open a socket to the hypervisor", "seccomp", "socket.socket(40, 1, 0); escaped()"),
    _py("open a socket to the kernel's ciphers", "seccomp", "socket.socket(38, 5, 0); escaped()"),
    _py(
        "make an interface",
        "network",
        "s = socket.socket(16, socket.SOCK_RAW, 0)\n"
        "name = struct.pack('HH', 9, 3) + b'dummy0' + b'\\0' * 2\n"
        "kind = struct.pack('HH', 16, 18) + struct.pack('HH', 9, 1) + b'dummy' + b'\\0' * 3\n"
        "body = struct.pack('BxHiII', 0, 0, 0, 0, 0) + name[:12] + kind\n"
        "s.send(struct.pack('IHHII', 16 + len(body), 16, 0x605, 1, 0) + body)\n"
        "answer = s.recv(4096)\n"
        "if struct.unpack('i', answer[16:20])[0] == 0: escaped()",
    ),
)
PROCESSES = (
    _sh("fork bomb of the shell", "pids", "b() { b | b & }; b; sleep 0.5", 2.0),
    _py(
        "fork until refused",
        "pids",
        "for n in range(environment('PIDS') + 50):\n"
        "    if os.fork() == 0: time.sleep(60)\n"
        "escaped(n)",
    ),
    _py(
        "threads until refused",
        "pids",
        "threading.stack_size(65536)\n"
        "for n in range(environment('PIDS') + 50):\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "escaped(n)",
    ),
    _sh("fork twice and lead a session", "", "(setsid sleep 9871 &); (sleep 9872 &); sleep 0.1"),
    _sh("ignore every signal", "", "trap '' TERM INT HUP QUIT; while :; do sleep 98; done", 0.5),
    _sh("kill everybody", "", "kill -9 1; kill -STOP 1; kill -9 -1; echo alive"),
    _sh("kill the parent", "", "kill -9 $PPID; kill -9 $$"),
    _sh("kill a process of the host", "", "kill -9 $VICTIM && echo ESCAPED"),
    _sh("see a process of the host", "", "for f in /proc/[0-9]*/cmdline; do tr '\\0' '\\n' <$f | "
        "grep -qx canary-victi[m] && echo ESCAPED; done"),
    _sh(
        "read what the first process was started with",
        "",
        "cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep ^WORKERS_SECRET && echo ESCAPED",
    ),
    _sh(
        "reach the host through the root of a process",
        "",
        "cat /proc/[0-9]*/root$CANARY/secret /proc/[0-9]*/cwd/secret | grep kept && echo ESCAPED",
    ),
    _sh("find a descriptor of the worker", "", "ls -l /proc/self/fd | grep -e socket: -e memfd "
        "-e anon_inode -e $CANARY && echo ESCAPED"),
    _py(
        "raise a limit",
        "",
        "most = environment('FILES') + 1\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)); escaped()",
    ),
    _py(
        "be scheduled before everybody",
        "",
        "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)); escaped()",
    ),
    _py("be nicer to nobody", "", "os.setpriority(os.PRIO_PROCESS, 0, -20); escaped()"),
    _sh(
        "leave the control group",
        "",
        "for f in /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs; do "
        "echo $$ >$f && echo ESCAPED; done; mkdir /sys/fs/cgroup/pids/x && echo ESCAPED",
    ),
    _py(
        "trace the first process",
        "seccomp",
        "if libc.ptrace(16, 1, 0, 0) == 0: escaped()",
    ),
    _py(
        "write into the first process",
        "seccomp",
        "here = ctypes.create_string_buffer(8)\n"
        "io = (ctypes.c_ulong * 2)(ctypes.addressof(here), 8)\n"
        "if libc.process_vm_readv(os.getpid(), io, 1, io, 1, 0) >= 0: escaped()",
    ),
)  # fmt: skip
RESOURCES = (
    _py("more memory than there is", "memory",
        "b = bytearray(environment('MEMORY') * 2); escaped()"),
    _py(
        "more memory in many processes",
        "memory of the box",
        "for n in range(12):\n"
        "    if os.fork() == 0:\n"
        "        b = bytearray(environment('MEMORY') // 4); time.sleep(20); os._exit(0)\n"
        "codes = []\n"
        "for n in range(12):\n"
        "    codes.append(os.waitstatus_to_exitcode(os.wait()[1]))\n"
        "    if codes[-1] == -9: sys.exit()\n"
        "escaped()",
    ),
    _sh("fill /tmp", "disk", "head -c $((DISK * 2)) /dev/zero >/tmp/a; "
        "for n in 1 2 3 4 5 6 7 8; do head -c $FILE /dev/zero >/tmp/$n; done; "
        "test $(du -sb /tmp | cut -f1) -gt $((DISK * 2)) && echo ESCAPED"),
    _sh("fill the directory", "disk", "for n in 1 2 3 4 5 6 7 8; do head -c $FILE /dev/zero >$n; "
        "done; test $(du -sb . | cut -f1) -gt $((DISK * 2)) && echo ESCAPED"),
    _sh("fill shared memory", "disk", "for n in 1 2 3 4 5 6 7 8; do "
        "head -c $FILE /dev/zero >/dev/shm/$n; done; "
        "test $(du -sb /dev/shm | cut -f1) -gt $((DISK * 2)) && echo ESCAPED"),
    _sh("one file too long", "disk", "head -c $((FILE * 2)) /dev/zero >long; "
        "test $(stat -c %s long) -gt $FILE && echo ESCAPED"),
    _sh("10,000 files", "", "seq -f n%.0f 10000 | xargs touch; ls | wc -l"),
    _py(
        "directories in directories",
        "",
        "for n in range(2000): os.mkdir('d'); os.chdir('d')",
    ),
    _py(
        "names that no one can print",
        "",
        "names = (b'\\n', b'..\\n', b'-rf', b'\\xff\\xfe', b' ', b'$(id)', b\"'\")\n"
        "for name in names: open(name, 'w')",
    ),
    _sh("an output that never ends", "", "yes flood", 0.7),
    _sh("errors that never end", "", "yes flood >&2", 0.4),
    _py(
        "open files until refused",
        "",
        "kept = [os.open('/dev/null', 0) for n in range(environment('FILES') + 1)]; escaped()",
    ),
    _sh("spin for ever", "", "while :; do :; done", 0.4),
)  # fmt: skip
INOTIFY = "libc.inotify_init1(0)"
LOCK = "fcntl.flock(os.open('/usr/bin/env', 0), fcntl.LOCK_EX | fcntl.LOCK_NB)"
TIMER = """
def timer():
    kind = struct.pack('QiI48x', 0, 0, 1)  # SIGEV_NONE
    return syscall(222, 1, kind, ctypes.byref(ctypes.c_int()))
"""
QUEUE = """
names = iter(range(100_000))
def queue():
    kind = struct.pack('llll32x', 0, 10, 8192, 0)
    return syscall(240, b'q%d' % next(names), os.O_CREAT | os.O_RDWR, 0o600, kind)
"""
WHOLE_KERNEL = (
    _py(
        "a place for asynchronous reads",
        "seccomp",
        "syscall(206, 64, ctypes.byref(ctypes.c_ulong())); escaped()",
    ),
    _beside(
        "all terminals",
        "",
        "until_refused(os.openpty, 150, 40)",
        "os.openpty()",
    ),
    _beside(
        "all memory segments of System V",
        "",
        "until_refused(lambda: syscall(29, 0, 4096, 0o1600))",
        "syscall(29, 0, 4096, 0o1600)",
    ),
    _beside(
        "all semaphores of System V",
        "",
        "until_refused(lambda: syscall(64, 0, 100, 0o1600), 1_000)",
        "syscall(64, 0, 100, 0o1600)",
    ),
    _beside("all message queues", "own user", QUEUE + "until_refused(queue)", QUEUE + "queue()"),
    _beside("all timers", "own user", TIMER + "until_refused(timer, 200_000)", TIMER + "timer()"),
    _beside(
        "all instances of inotify",
        "own user",
        "until_refused(lambda: syscall(294, 0), 190, 10)",
        "syscall(294, 0)",
    ),
    _beside(
        "lock a program that others run",
        "files",
        f"import fcntl\n{LOCK}\nheld()",
        f"import fcntl\n{LOCK}",
    ),
    _beside(
        "watch what others run",
        "files",
        "watch = syscall(294, os.O_NONBLOCK)\n"
        "syscall(254, watch, b'/usr/bin', 0x20); held()\n"
        "if b'tac' in os.read(watch, 1 << 16): escaped()",
        "open('/usr/bin/tac').close()",
    ),
)  # fmt: skip
FILES = (
    _sh("read a file of the host", "", "cat $CANARY/secret && echo ESCAPED"),
    _sh("write a file of the host", "", "echo x >>$CANARY/secret && echo ESCAPED"),
    _sh("follow a link out", "", "ln -s $CANARY out; cat out/secret && echo ESCAPED; "
        "echo x >>out/secret && echo ESCAPED"),
    _sh("a second name for a program that is root's", "", "ln /usr/bin/su . && echo ESCAPED"),
    _sh("write beside the programs", "", "for f in /usr/bin/x /bin/sh /lib/x /etc/passwd /x; do "
        "echo x >>$f && echo ESCAPED; done"),
    _sh("make programs writable", "", "mount -o remount,rw /usr && echo ESCAPED; "
        "chmod u+w /usr/bin/env && echo ESCAPED"),
    _sh("make a device", "", "mknod disk b 254 0 && echo ESCAPED; mknod mem c 1 1 && echo ESCAPED"),
    _sh("read a disk", "", "for f in /dev/[svx][dv]a* /dev/mem /dev/kmsg /dev/port /dev/fuse; do "
        "head -c 1 $f | grep -q . && echo ESCAPED; done"),
    _sh("tell the kernel what to do with cores", "", "echo '|/w/x' >/proc/sys/kernel/core_pattern "
        "&& echo ESCAPED"),
    _sh("tell the kernel what loads modules", "", "echo /w/x >/proc/sys/kernel/modprobe "
        "&& echo ESCAPED; echo /w/x >/sys/kernel/uevent_helper && echo ESCAPED"),
    _sh("give the host another name", "", "echo box >/proc/sys/kernel/hostname && echo ESCAPED; "
        "hostname other && echo ESCAPED"),
    _sh("restart the host", "", "echo s >/proc/sysrq-trigger && echo ESCAPED"),
    _sh("use a program that is root's", "", "for p in 'su -c id' 'sudo -n id' 'pkexec id' "
        "'mount -t tmpfs x /tmp'; do timeout 2 $p </dev/null | grep uid=0 && echo ESCAPED; done"),
    _sh("make a program that is root's", "", "cp /usr/bin/id . && chmod 6755 id && ./id -u | "
        "grep -x 0 && echo ESCAPED"),
    _sh("have a user namespace of its own", "user", "unshare -Ur id && echo ESCAPED; "
        "unshare -Urm mount -t tmpfs x /tmp && echo ESCAPED"),
    _sh("mount", "", "mount -t proc x /tmp && echo ESCAPED; mount --bind / /tmp && echo ESCAPED; "
        "umount /proc/sys && echo ESCAPED"),
    _py("change the root", "", "os.chroot('/tmp'); escaped()"),
    _sh("find the socket of an engine", "", "ls /var/run/docker.sock /run/docker.sock "
        "/run/containerd && echo ESCAPED"),
    _sh("write to a terminal", "", "echo x >/dev/tty && echo ESCAPED; echo x >/dev/console && "
        "echo ESCAPED"),
    _py(
        "open a file of the host by its number",
        "",
        "handle = struct.pack('IiQQ', 8, 1, 2, 0)\n"
        "fd = os.open('/usr', 0)\n"
        "if libc.open_by_handle_at(fd, handle, 0) >= 0: escaped()",
    ),
)  # fmt: skip
KERNEL = (
    _py("be root", "", "os.setuid(0); escaped()"),
    _py("have a right back", "", "os.setgroups([0]); escaped()"),
    _py("load a module", "", "syscall(313, 0, b'', 0); escaped()"),
    _py("set the clock", "", "time.clock_settime(time.CLOCK_REALTIME, 0); escaped()"),
    _py("make a keyring", "seccomp", "syscall(248, b'keyring', b'x', 0, 0, -3); escaped()"),
    _py("read a keyring of the user", "seccomp", "syscall(250, 6, -4, 0, 0); escaped()"),
    _py("load a program into the kernel", "seccomp", "syscall(321, 0, 0, 0); escaped()"),
    _py("handle faults of pages", "seccomp", "syscall(323, 1); escaped()"),
    _py(
        "count what the processor does",
        "seccomp",
        "attributes = struct.pack('II', 1, 120) + bytes(112)\n"
        "syscall(298, attributes, 0, -1, -1, 0); escaped()",
    ),
    _py(
        "queue calls beside the filter",
        "seccomp",
        "syscall(425, 8, ctypes.create_string_buffer(120)); escaped()",
    ),
    _py("leave the namespaces", "seccomp", "syscall(272, 0x20000); escaped()"),
    _py("enter those of another", "", "syscall(308, os.open('/proc/1/ns/mnt', 0), 0); escaped()"),
    _sh("read the log of the kernel", "", "dmesg | grep . && echo ESCAPED"),
    _sh("imitate the frame of the shell", "", "printf '%032d>000%032d<' 0 0; "
        "tr '\\0' '\\n' </proc/$PPID/cmdline"),
)  # fmt: skip
ATTACKS: tuple[Attack, ...] = (*NETWORK, *PROCESSES, *RESOURCES, *WHOLE_KERNEL, *FILES, *KERNEL)
