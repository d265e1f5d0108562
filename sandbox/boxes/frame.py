"""Framing of a command's output in a persistent shell: a nonce marks its begin and end.

The shell prints the nonce and `<`, runs the command, prints the nonce, `>` and the exit code in
three digits. The nonce is drawn anew for each command, so a command's output may be any bytes and
cannot forge a frame. Output before the opening mark comes from processes that earlier commands left
running; it is dropped. The shell gets a single line, so it has read all before it runs any of it.
A shell is alive if it answers a framed command that does nothing.
"""

import asyncio
import re
import secrets
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping

from rollcall.sandbox.boxes.box import BoxProgram
from rollcall.schemas.errors import FailureCode, WorkFailed

CODE_DIGITS = 3
FORGED = 255
_decoder = getincrementaldecoder("utf-8")


def quote(text: str) -> str:
    """Quote a text as one word of a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


class Frame:
    """The frame of one command: writes it, and parses it from the shell's output."""

    def __init__(self) -> None:
        nonce = secrets.token_hex(16)
        self._nonce = nonce
        self._opens, self._closes = f"{nonce}<".encode(), f"{nonce}>".encode()
        self._pending = b""
        self._open = False
        self.exit_code: int | None = None
        """The command's exit code, once its frame is closed."""

    def around(self, command: str, *, status: int, subshell: bool) -> bytes:
        """Return the shell's input: the framed command, with `$?` set to `status` and empty stdin.

        With `command eval` an unclosed quote does not end the shell, as it would with plain `eval`.
        `command printf` ignores functions of that name. The redirections undo what the command does
        to the shell's own descriptors.
        """
        before = f"(exit {status}); " if status else ""
        opening, closing = "()" if subshell else "{}"
        body = f"{opening} command eval {quote(command)}; {closing} </dev/null 2>&1 1>&2"
        first = f"command printf '%s<' {self._nonce}"
        last = f"command printf '%s>%03d' {self._nonce} $?"
        return f"{first}; {before}{body}; {last}\n".encode("utf-8", "replace")

    def take(self, chunk: bytes) -> bytes:
        """Add a chunk; return the new bytes that are certainly the command's output."""
        self._pending += chunk
        if not self._open:
            _, self._open, rest = _part(self._pending, self._opens)
            # Keep what may be the begin of a mark that has not arrived whole.
            self._pending = rest if self._open else self._pending[1 - len(self._opens) :]
        if not self._open:
            return b""
        printed, closed, rest = _part(self._pending, self._closes)
        if closed and len(rest) >= CODE_DIGITS:
            self.exit_code, self._pending = _code(rest[:CODE_DIGITS]), b""
            return printed
        sure = len(printed) if closed else max(0, len(printed) - len(self._closes) + 1)
        self._pending = self._pending[sure:]
        return printed[:sure]

    def rest(self) -> bytes:
        """Return the bytes of an unclosed frame that were held back as a possible end mark."""
        rest, self._pending = self._pending if self._open else b"", b""
        return rest


def _code(digits: bytes) -> int:
    """The exit code of a shell; FORGED where no shell has printed it.

    What runs in the box can read the nonce from the shell's memory, or give `command` another
    meaning: that must not look like a fault of the box.
    """
    return int(digits) if digits.isdigit() and int(digits) <= FORGED else FORGED


def _part(text: bytes, mark: bytes) -> tuple[bytes, bool, bytes]:
    before, found, after = text.partition(mark)
    return before, bool(found), after


class HeadAndTail:
    """The beginning and the end of a text that arrives in pieces; the middle is only counted.

    Bytes that are not UTF-8 become U+FFFD. `shown` maps names to their replacements. If something
    is left out, `whole` is called with the whole text, piece by piece from its beginning.
    """

    def __init__(
        self,
        head_chars: int,
        tail_chars: int,
        shown: Mapping[bytes, bytes],
        whole: Callable[[bytes], None] | None = None,
    ) -> None:
        self._head_chars, self._tail_chars = head_chars, tail_chars
        self._shown = shown
        self._whole = whole
        self._is_whole = True
        """True while nothing has been left out."""
        names = sorted(shown, key=len, reverse=True)
        self._names = re.compile(b"|".join(map(re.escape, names)) or b"(?!)")
        self._longest = max(map(len, shown), default=1)
        self._pending = b""
        self._decode = _decoder("replace").decode
        self._head, self._tail = "", ""
        self._chars = 0

    def add(self, piece: bytes) -> None:
        """Add the next piece."""
        self._pending += piece
        # A name that begins before this position has arrived as a whole.
        self._decode_until(len(self._pending) - self._longest + 1)

    def text(self) -> tuple[str, int]:
        """Return the kept text, and the number of characters that are left out of it."""
        self._decode_until(len(self._pending))
        self._keep(self._decode(b"", True))
        elided = self._chars - len(self._head) - len(self._tail)
        if not elided:
            return self._head + self._tail, 0
        return f"{self._head}\n[{elided} characters left out]\n{self._tail}", elided

    def _decode_until(self, sure: int) -> None:
        """Keep the bytes before a position, and a name that begins before it; replace names."""
        done = 0
        for name in self._names.finditer(self._pending):
            if name.start() >= sure:
                break
            self._keep(self._decode(self._pending[done : name.start()] + self._shown[name[0]]))
            done = name.end()
        if done < sure:
            self._keep(self._decode(self._pending[done:sure]))
            done = sure
        self._pending = self._pending[done:]

    def _keep(self, text: str) -> None:
        self._chars += len(text)
        room = self._head_chars - len(self._head)
        if room > 0:
            self._head, text = self._head + text[:room], text[room:]
        if text and self._whole:
            self._tell_whole(text, self._whole)
        if text and self._tail_chars:
            self._tail = (self._tail + text)[-self._tail_chars :]

    def _tell_whole(self, text: str, whole: Callable[[bytes], None]) -> None:
        if self._is_whole and len(self._tail) + len(text) > self._tail_chars:
            self._is_whole = False
            whole((self._head + self._tail).encode())
        if not self._is_whole:
            whole(text.encode())


CHUNK_BYTES = 1 << 16
TIMED_OUT = -1
SIGNALLED = 128
QUIET = b"exec 2>/dev/null\n"
"""Silences the shell's own stderr; its errors about a command go to the command's output."""


async def framed_code(
    program: BoxProgram, frame: Frame, kept: HeadAndTail, text: bytes, timeout_s: float
) -> int:
    """Run a framed command; return its exit code, that of the ended shell, or TIMED_OUT."""
    try:
        async with asyncio.timeout(timeout_s):
            await program.write(text)
            while frame.exit_code is None:
                chunk = await program.read(CHUNK_BYTES)
                if not chunk:
                    code = await program.wait()
                    return code if code >= 0 else SIGNALLED - code
                kept.add(frame.take(chunk))
    except TimeoutError:
        return TIMED_OUT
    return frame.exit_code


async def answering(program: BoxProgram, within_s: float) -> BoxProgram:
    """Return a shell once it has answered; else end it and raise WorkFailed(`box_died`)."""
    frame = Frame()
    try:
        text = QUIET + frame.around(":", status=0, subshell=False)
        code = await framed_code(program, frame, HeadAndTail(0, 0, {}), text, within_s)
    finally:
        if frame.exit_code != 0:
            await program.end()
    if frame.exit_code != 0:
        how = f"within {within_s:g} s" if code == TIMED_OUT else f"but ends (exit code {code})"
        msg = f"a shell in the box does not answer {how}"
        raise WorkFailed(FailureCode.BOX_DIED, msg, retriable=True)
    return program
