"""A task's files in a box: a git repository with one commit, tagged `base`.

An agent's work is the difference from there, with files that it added, without the caches of Python
and pytest. The files' own git attributes are overridden, so a patch holds their exact bytes.
Repositories that an image has there are removed with their history: it holds commits after the
task's commit, including the solution.
"""

from rollcall.sandbox.boxes.box import Box
from rollcall.sandbox.tasks.git_trees import ATTRIBUTES
from rollcall.sandbox.tasks.harbor import HarborTask
from rollcall.schemas.errors import FailureCode, WorkFailed

EXCLUDED = ("*.pyc", ".pytest_cache/")
ELSEWHERE = 66
# Given a directory, and files and links of the repositories below it, this prints each readable
# path outside of the directory that they refer to.
PLACES = r"""
here=$1; shift
lies() {
  case $1 in
    ''|'#'*|*://*) return ;;
    /*) found=$1 ;;
    *) found=$2/$1 ;;
  esac
  found=$(readlink -f -- "$found") || return 0
  case $found/ in
    "$here"/*) ;;
    *) [ ! -r "$found" ] || printf '%s\n' "$found" ;;
  esac
}
for each do
  above=$(dirname -- "$each")
  if [ -L "$each" ]; then
    lies "$(readlink -- "$each")" "$above"
    continue
  fi
  case $each in
    */info/alternates) above=$(dirname -- "$above"); lines='s/"//g; p' ;;
    */commondir) lines=p ;;
    */.git) lines='s/^gitdir: *//p' ;;
    *) above=${above%/.git}; lines='s|^[[:space:]]*url *= *\(file://\)\{0,1\}||p' ;;
  esac
  sed -n -e "$lines" -- "$each" | while IFS= read -r line; do lies "$line" "$above"; done
done
"""
# This removes bare repositories that are not files of the project, such as a mirror beside it, and
# other worktrees, whose files are those of another commit.
OTHERS = r"""
for each do
  place=$(dirname -- "$each")
  [ "$place" != . ] || continue
  case $each in
    */.git) grep -q '^gitdir: .*/worktrees/' "$each" && rm -rf -- "$place"; continue ;;
  esac
  [ -d "$place/objects" ] && [ -d "$place/refs" ] || continue
  code=0
  git -c safe.directory='*' -C "$(dirname -- "$place")" ls-files --error-unmatch \
    -- "$(basename -- "$place")/HEAD" >/dev/null 2>&1 || code=$?
  [ "$code" != 1 ] || rm -rf -- "$place"
done
"""
# `find` fails if it cannot open a folder, but it still searches the others: ignore its exit code.
BASE = rf"""
set -e
here=$(pwd -P)
search() {{ find . "$@" 2>/dev/null || :; }}
search -type d ! -perm -700 -exec chmod u+rwx -- {{}} \;
places=$(search '(' -name .git -o -path '*/.git/*' ')' -type l -exec sh -c "$1" sh "$here" {{}} + \
  -o -type f '(' -name .git -o -path '*/objects/info/alternates' -o -path '*/.git/*commondir' \
  -o -path '*/.git/*config' ')' -exec sh -c "$1" sh "$here" {{}} +)
if [ -n "$places" ]; then
  printf '%s\n' "$places"
  exit {ELSEWHERE}
fi
search -name .git -type d -prune -o -type f '(' -name .git -o -name HEAD ')' \
  -exec sh -c "$2" sh {{}} +
search -name .git -prune -exec rm -rf -- {{}} +
[ -z "$(search -name .git)" ]
git init -q --template= .
mkdir .git/info
git config user.name agent
git config user.email agent@localhost
git config core.autocrlf false
echo '{ATTRIBUTES.strip()}' > .git/info/attributes
printf '%s\n' {" ".join(f"'{each}'" for each in EXCLUDED)} > .git/info/exclude
git add -A -f .
git commit -q --allow-empty --no-verify -m base
git tag base
git rev-parse 'base^{{tree}}'
"""
# Fixed dates give the commit the same id in every box.
BORN = {
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}
LONGEST_S = 120.0


async def lay_out(box: Box, task: HarborTask, workdir: str = "") -> str:
    """Put a task's files into the directory of a box and commit them; return the tree id.

    Files of an image are in `workdir` already. Raises WorkFailed, as `commit_all` does.
    """
    if task.testbed and not workdir:
        await box.copy_in(task.testbed)
    return await commit_all(box, workdir, f"task {task.name!r}")


async def commit_all(box: Box, workdir: str, whose: str) -> str:
    """Make a repository with one commit of all files in a box's directory; return the tree id.

    Raises WorkFailed: `bad_config` if the box has no git, or if a repository there refers to a
    readable one outside of the directory, `deadline`, or the box's errors.
    """
    commit = ("/bin/sh", "-c", BASE, "sh", PLACES, OTHERS)
    ran = await box.run(commit, env=BORN, timeout_s=LONGEST_S, cwd=workdir or None)
    if ran.timed_out:
        msg = f"the files of {whose} are not committed within {LONGEST_S:g} s"
        raise WorkFailed(FailureCode.DEADLINE, msg, retriable=True)
    said = ran.output.strip()[-500:]
    if ran.exit_code == ELSEWHERE:
        msg = f"a repository of {whose} stands on what its image has outside of {workdir}, where "
        msg += f"later commits could be read; remove that from the image: {said}"
        raise WorkFailed(FailureCode.BAD_CONFIG, msg, retriable=False)
    if ran.exit_code:
        msg = f"the files of {whose} cannot be committed in the box: {said}"
        raise WorkFailed(FailureCode.BAD_CONFIG, msg, retriable=False)
    return ran.output.split()[-1]
