"""The changes to a task's files in a box, as a patch against the original files.

git makes it in the box with a separate repository: the work's own repository with its settings,
hooks, filters and drivers is not used, and may be gone. The original files are sent to the box
again; only if the image alone has them their objects are read from the repository there.
"""

import asyncio
import re
from dataclasses import dataclass

from rollcall.sandbox.artefacts import ArtefactSpool
from rollcall.sandbox.boxes.box import VARIABLES, Box, BoxProgram
from rollcall.sandbox.boxes.probe import probe
from rollcall.sandbox.grading.patches import MOST_BYTES
from rollcall.sandbox.tasks.git_trees import ATTRIBUTES
from rollcall.sandbox.tasks.testbed import EXCLUDED
from rollcall.schemas.untrusted_text import clean_text

CHUNK_BYTES = 1 << 16
TAKE_S = 60.0
CHANGED_BYTES = 64 << 20
"""The most bytes of new and changed files; more would make a patch that is too large to grade."""
CHANGED_FILES = 20_000
ENTRIES = 400_000
"""The most directory entries, git's own included; with more no patch is made."""
TOO_MUCH = 65
ROOM_KB = 96 << 10
"""The space in KiB that is needed beside the original files: for changed files and lists."""
CACHES = r"\.pyc$|(^|/)\.pytest_cache/"
"""Caches of Python and pytest, which are not named as left out; like `EXCLUDED`."""
NAMED_BYTES = 4096
MOST_NAMED, MOST_NAME = 20, 200
LEFT = re.compile(rb"left (\d{1,9}) (\d{1,9})\n")
COUNTED = re.compile(r"(\d{1,18}) (\d{1,18})\b")
ENVIRONMENT = {
    "PATH": VARIABLES["PATH"],
    "LC_ALL": "C.UTF-8",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
}
SETTINGS = {
    "core.repositoryFormatVersion": "0",
    "core.bare": "false",
    "core.autocrlf": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.fileMode": "true",
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.ignoreCase": "false",
    "core.symlinks": "true",
    "gc.auto": "0",
}
# The environment is cleared, except for the directory of temporary files.
BARE = 'exec /usr/bin/env -i "TMPDIR=${TMPDIR:-/tmp}" "$@"'
# `find` lists the files, as git's own commands leave nested repositories out. Pipes and sockets are
# deleted, as reading them could block. Files are made readable, as unreadable ones are no change.
TAKE = r"""
set -e
work=$1 base=$2 most_files=$3 most_bytes=$4 most_entries=$5 needed_kb=$6
chmod u+rwx -- "$work" || :
place_with() {{
  for place in "$TMPDIR" /tmp /var/tmp /dev/shm "$work"; do
    chmod u+rwx -- "$place" || :
    made=$(mktemp -d -- "$place/.take.XXXXXXXX") || continue
    free=$(df -Pk -- "$made" | awk 'NR == 2 {{print $4}}') || :
    if [ "${{free:-0}}" -ge "$1" ] && head -c 65536 /dev/zero >"$made/said"; then return; fi
    rm -rf -- "$made"
  done
  return 1
}}
if ! place_with "$needed_kb" 2>/dev/null && ! place_with 64 2>/dev/null; then
  echo "no folder for temporary files can be written, or none has room left"
  exit 1
fi
export GIT_DIR="$made"
trap 'code=$?; [ $code = 0 ] || head -c 300 "$GIT_DIR/said"; rm -rf -- "$GIT_DIR"; exit $code' EXIT
exec 2>"$GIT_DIR/said"
cd -- "$work"
entries=$(find . -printf x | head -c $(($most_entries + 1)) | wc -c)
if [ "$entries" -gt "$most_entries" ]; then
  echo "$entries 0"
  exit {too_much}
fi
export GIT_WORK_TREE="$work" LC_ALL=C
git init -q --template=
mkdir -p "$GIT_DIR/info" "$GIT_DIR/objects/info" "$GIT_DIR/base"
cat >"$GIT_DIR/config" <<'END'
{settings}END
cat >"$GIT_DIR/info/attributes" <<'END'
{attributes} !diff
END
cat >"$GIT_DIR/info/exclude" <<'END'
{excluded}
END
chmod -R u+rwX . || :
listed() {{ find . -path "./${{GIT_DIR##*/}}" -prune -o -path ./.git -prune -o "$@"; }}
listed ! -type f ! -type d ! -type l -printf '%P\0' >"$GIT_DIR/left"
find . ! -type f ! -type d ! -type l -delete || :
if [ -n "$base" ]; then
  printf '%s\n' "$work/.git/objects" >"$GIT_DIR/objects/info/alternates"
else
  tar -x -f - -C "$GIT_DIR/base" --no-same-owner
  git --work-tree="$GIT_DIR/base" add -A -f .
  base=$(git write-tree)
  (cd "$GIT_DIR/base"; find . -type d -empty -printf '%P/\0' | sort -z >"$GIT_DIR/bare")
  listed -name .git -prune -o -type d -empty ! -path . -printf '%P/\0' | sort -z >"$GIT_DIR/empty"
  comm -z -23 "$GIT_DIR/empty" "$GIT_DIR/bare" >>"$GIT_DIR/left"
fi
git read-tree "$base"
listed -name .git -prune -o '(' -type f -o -type l ')' -printf '%P\0' | sort -z >"$GIT_DIR/all"
git ls-files -z | sort -z | comm -z -13 - "$GIT_DIR/all" | sed -z 's|^|./|' >"$GIT_DIR/unknown"
git check-ignore -z --stdin --no-index <"$GIT_DIR/unknown" >"$GIT_DIR/ignored" || [ $? = 1 ]
sed -zi 's|^./||' "$GIT_DIR/unknown" "$GIT_DIR/ignored"
export GIT_LITERAL_PATHSPECS=1
[ ! -f .git/index ] || cp .git/index "$GIT_DIR/theirs" || :
GIT_INDEX_FILE="$GIT_DIR/theirs" git ls-files -z | sort -zu >"$GIT_DIR/added"
comm -z -23 "$GIT_DIR/unknown" "$GIT_DIR/ignored" >"$GIT_DIR/new"
comm -z -12 "$GIT_DIR/ignored" "$GIT_DIR/added" >>"$GIT_DIR/new"
git ls-files -z -m >"$GIT_DIR/other"
cat "$GIT_DIR/new" "$GIT_DIR/other" >"$GIT_DIR/changed"
files=$(tr -dc '\0' <"$GIT_DIR/changed" | wc -c)
xargs -0 -r stat -c %s -- <"$GIT_DIR/changed" >"$GIT_DIR/sizes" || :
bytes=$(awk '{{n+=$1}} END {{printf "%.0f", n}}' "$GIT_DIR/sizes")
if [ "$files" -gt "$most_files" ] || [ "$bytes" -gt "$most_bytes" ]; then
  echo "$files $bytes"
  exit {too_much}
fi
git update-index --add --remove --replace -z --stdin <"$GIT_DIR/new"
git ls-files -z | sort -z | comm -z -13 - "$GIT_DIR/all" >>"$GIT_DIR/left"
listed -name .git -prune -printf '%P\0' >>"$GIT_DIR/left"
grep -zavE '{caches}' "$GIT_DIR/left" >"$GIT_DIR/named" || :
head -c {named_bytes} "$GIT_DIR/named" >"$GIT_DIR/told"
echo "left $(tr -dc '\0' <"$GIT_DIR/named" | wc -c) $(wc -c <"$GIT_DIR/told")"
cat "$GIT_DIR/told"
git diff --binary --full-index --no-color --no-ext-diff --no-textconv --no-renames \
  --ignore-submodules=all --src-prefix=a/ --dst-prefix=b/ "$base"
""".format(
    settings="".join(
        f"[{name.partition('.')[0]}]\n{name.partition('.')[2]} = {value}\n"
        for name, value in SETTINGS.items()
    ),
    attributes=ATTRIBUTES.strip(),
    excluded="\n".join(EXCLUDED),
    caches=CACHES,
    named_bytes=NAMED_BYTES,
    too_much=TOO_MUCH,
)


@dataclass(frozen=True, slots=True)
class WorkPatch:
    """The result of making a patch."""

    size: int = 0
    """The size of the patch, or of the changes that make it too large."""
    untaken: str = ""
    """The reason why there is no patch; empty if the spool holds it."""
    too_large: bool = False
    left_out: tuple[str, ...] = ()
    """Files that are neither original nor in the patch: some names, then the number of others."""


async def take_patch(
    box: Box, spool: ArtefactSpool, *, workdir: str, base: bytes | None, tree: str
) -> WorkPatch:
    """Write the patch into a spool of at most `rollcall.sandbox.grading.patches.MOST_BYTES`.

    `base` is a tar stream of the original files; None if `tree` is their id in the work's own
    repository. If it takes longer than TAKE_S in a live box there is no patch: an agent can leave
    files that make git slow. Raises WorkFailed, as `rollcall.sandbox.boxes.probe` does.
    """
    words = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
    bounds = CHANGED_FILES, CHANGED_BYTES, ENTRIES, ROOM_KB + 2 * len(base or b"") // 1024
    told = [workdir, "" if base is not None else tree, *map(str, bounds)]
    bare = "/bin/sh", "-c", BARE, "sh", *words
    program = await box.start(*bare, "/bin/sh", "-c", TAKE, "sh", *told)
    taken = _Taken(spool)
    try:
        async with asyncio.timeout(TAKE_S):
            code = await _spooled(program, base or b"", taken)
    except TimeoutError:
        await probe(box)
        return WorkPatch(untaken=f"git makes no patch of it within {TAKE_S:g} s")
    finally:
        await program.end()
    if code == 0:
        return WorkPatch(spool.size, too_large=spool.cut, left_out=taken.named())
    await probe(box)
    said = (taken.head + spool.read())[-300:].decode(errors="replace").strip()
    if code == TOO_MUCH:
        files, size = _counted(said)
        reason = f"{files:,} files of {size:,} bytes are new or other ones"
        return WorkPatch(max(size, MOST_BYTES + 1), reason, too_large=True)
    return WorkPatch(untaken=f"git makes no patch of it: {said or f'it ended with {code}'}")


@dataclass(slots=True)
class _Taken:
    """A splitter of the program's output: the names of files left out, then the patch."""

    spool: ArtefactSpool
    head: bytes = b""
    _names: bytes = b""
    _count: int = 0
    _begun: bool = False

    def write(self, chunk: bytes) -> None:
        """Add a chunk of output. Raises WorkFailed(`no_room`), as the spool does."""
        if self._begun:
            self.spool.write(chunk)
            return
        self.head += chunk
        told = LEFT.match(self.head)
        if told and len(self.head) >= (end := told.end() + int(told[2])):
            self._count, self._begun = int(told[1]), True
            self._names, patch, self.head = self.head[told.end() : end], self.head[end:], b""
            self.spool.write(patch)
        elif len(self.head) > 2 * NAMED_BYTES:
            self._begun = True
            self.spool.write(self.head)

    def named(self) -> tuple[str, ...]:
        """Return some of the names, and the number of others."""
        whole = self._names.split(b"\0")[:-1][:MOST_NAMED]
        names = [clean_text(name.decode(errors="backslashreplace"), MOST_NAME) for name in whole]
        more = self._count - len(names)
        return (*names, f"and {more:,} more") if more else tuple(names)


def _counted(said: str) -> tuple[int, int]:
    """Parse files and bytes at the begin of the output; killed programs may have added text."""
    told = COUNTED.match(said)
    return (int(told[1]), int(told[2])) if told else (0, 0)


async def _spooled(program: BoxProgram, base: bytes, taken: _Taken) -> int:
    """Read the output and return the exit code; 0 also if the patch became too large."""
    feeding = asyncio.create_task(_feed(program, base))
    try:
        while chunk := await program.read(CHUNK_BYTES):
            taken.write(chunk)
            if taken.spool.cut:
                return 0
        return await program.wait()
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


async def _feed(program: BoxProgram, base: bytes) -> None:
    await program.write(base)
    program.close_input()
