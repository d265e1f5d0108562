"""What was done in a box at the files of a task, as a patch against how they were.

git makes it in the box, by a repository of its own: that of the work, its settings, hooks, filters
and drivers count for nothing, and may be gone. How the files were is told again by whoever has the
task; only where nobody but the image had them their objects are read from the repository there.
"""

import asyncio
import re
from dataclasses import dataclass

from sandbox.artefact_spool import ArtefactSpool
from sandbox.boxes.box import VARIABLES, Box, BoxProgram
from sandbox.boxes.probe import probe
from sandbox.grading.patches import MOST_BYTES
from sandbox.tasks.git_trees import ATTRIBUTES
from sandbox.tasks.testbed import EXCLUDED
from schemas.errors import WorkFailed

CHUNK_BYTES = 1 << 16
TAKE_S = 60.0
CHANGED_BYTES = 64 << 20
"""Of all files that are new or other ones; what is more makes no patch that anybody would judge."""
CHANGED_FILES = 20_000
ENTRIES = 400_000
"""Of all that is there, git's own included: more is not even looked at."""
TOO_MUCH = 65
COUNTED = re.compile(r"(\d{1,18}) (\d{1,18})\b")
ENVIRONMENT = {
    "PATH": VARIABLES["PATH"],
    "LC_ALL": "C.UTF-8",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_LITERAL_PATHSPECS": "1",
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
# Nothing that the box was given is left in the environment, but where temporary files go.
BARE = 'exec /usr/bin/env -i "TMPDIR=${TMPDIR:-/tmp}" "$@"'
# Pipes and sockets would be waited for, and what cannot be read is no change.
TAKE = """\
set -e
work=$1 base=$2 most_files=$3 most_bytes=$4
export GIT_DIR="$(mktemp -d)"
trap 'code=$?; [ $code = 0 ] || head -c 300 "$GIT_DIR/said"; rm -rf -- "$GIT_DIR"; exit $code' EXIT
exec 2>"$GIT_DIR/said"
chmod u+rwx -- "$work" || :
cd -- "$work"
entries=$(find . -printf x | head -c $(($5 + 1)) | wc -c)
if [ "$entries" -gt "$5" ]; then
  echo "$entries 0"
  exit {too_much}
fi
export GIT_WORK_TREE="$work"
git init -q --template=
mkdir -p "$GIT_DIR/info" "$GIT_DIR/objects/info"
cat >"$GIT_DIR/config" <<'END'
{settings}END
cat >"$GIT_DIR/info/attributes" <<'END'
{attributes} !diff
END
cat >"$GIT_DIR/info/exclude" <<'END'
{excluded}
END
find . ! -type f ! -type d ! -type l -delete || :
chmod -R u+rwX . || :
if [ -n "$base" ]; then
  printf '%s\\n' "$work/.git/objects" >"$GIT_DIR/objects/info/alternates"
else
  mkdir "$GIT_DIR/base"
  tar -x -f - -C "$GIT_DIR/base" --no-same-owner
  git --work-tree="$GIT_DIR/base" add -A -f .
  base=$(git write-tree)
fi
git read-tree "$base"
git ls-files -z -o --exclude-standard | sed -z '/\\/$/d' >"$GIT_DIR/new"
git ls-files -z -m >"$GIT_DIR/other"
cat "$GIT_DIR/new" "$GIT_DIR/other" >"$GIT_DIR/changed"
files=$(tr -dc '\\0' <"$GIT_DIR/changed" | wc -c)
xargs -0 -r stat -c %s -- <"$GIT_DIR/changed" >"$GIT_DIR/sizes" || :
bytes=$(awk '{{n+=$1}} END {{printf "%.0f", n}}' "$GIT_DIR/sizes")
if [ "$files" -gt "$most_files" ] || [ "$bytes" -gt "$most_bytes" ]; then
  echo "$files $bytes"
  exit {too_much}
fi
[ ! -s "$GIT_DIR/new" ] || git add -N -f --pathspec-from-file="$GIT_DIR/new" --pathspec-file-nul
git diff --binary --full-index --no-color --no-ext-diff --no-textconv --no-renames \\
  --ignore-submodules=all --src-prefix=a/ --dst-prefix=b/ "$base"
""".format(
    settings="".join(
        f"[{name.partition('.')[0]}]\n{name.partition('.')[2]} = {value}\n"
        for name, value in SETTINGS.items()
    ),
    attributes=ATTRIBUTES.strip(),
    excluded="\n".join(EXCLUDED),
    too_much=TOO_MUCH,
)


@dataclass(frozen=True, slots=True)
class WorkPatch:
    """What came of taking it."""

    size: int = 0
    """Of the patch, or of what would make it too large for anybody to judge."""
    untaken: str = ""
    """Why there is none; empty where the spool holds it."""
    too_large: bool = False


async def take_patch(
    box: Box, spool: ArtefactSpool, *, workdir: str, base: bytes | None, tree: str
) -> WorkPatch:
    """Write the patch into a spool that takes no more than `sandbox.grading.patches.MOST_BYTES`.

    `base` is a tar stream of the files as they were; None where `tree` is theirs in the repository
    of the work. Raises WorkFailed: as `sandbox.boxes.probe`, and `deadline` after TAKE_S.
    """
    words = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
    told = [
        workdir,
        "" if base is not None else tree,
        *map(str, (CHANGED_FILES, CHANGED_BYTES, ENTRIES)),
    ]
    bare = "/bin/sh", "-c", BARE, "sh", *words
    program = await box.start(*bare, "/bin/sh", "-c", TAKE, "sh", *told)
    try:
        async with asyncio.timeout(TAKE_S):
            code = await _spooled(program, base or b"", spool)
    except TimeoutError as error:
        await probe(box)
        msg = f"git makes no patch of the work in the box within {TAKE_S:g} s"
        raise WorkFailed("deadline", msg, retriable=True) from error
    finally:
        await program.end()
    if code == 0:
        return WorkPatch(spool.size, too_large=spool.cut)
    await probe(box)
    said = spool.read()[-300:].decode(errors="replace").strip()
    if code == TOO_MUCH:
        files, size = _counted(said)
        reason = f"{files:,} files of {size:,} bytes are new or other ones"
        return WorkPatch(max(size, MOST_BYTES + 1), reason, too_large=True)
    return WorkPatch(untaken=f"git makes no patch of it: {said or f'it ended with {code}'}")


def _counted(said: str) -> tuple[int, int]:
    """Files and bytes, as the first line tells them: programs that are killed may add to it."""
    told = COUNTED.match(said)
    return (int(told[1]), int(told[2])) if told else (0, 0)


async def _spooled(program: BoxProgram, base: bytes, spool: ArtefactSpool) -> int:
    """The exit code; 0 also where it was ended since the patch is too large."""
    feeding = asyncio.create_task(_feed(program, base))
    try:
        while chunk := await program.read(CHUNK_BYTES):
            spool.write(chunk)
            if spool.cut:
                return 0
        return await program.wait()
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


async def _feed(program: BoxProgram, base: bytes) -> None:
    await program.write(base)
    program.close_input()
