"""A task's files in a box: a repository of one commit, called `base`, whatever the files say.

What an agent has changed is the difference from there, with files that it added, without what
Python and pytest leave behind. The files' own attributes for git count for nothing, so a patch
holds their bytes as they are. Repositories that an image has there are removed with all that they
remember: they hold what came after the task's commit, its solution among it.
"""

from sandbox.boxes.box import Box
from sandbox.tasks.git_trees import ATTRIBUTES
from sandbox.tasks.harbor import HarborTask
from schemas.errors import WorkFailed

EXCLUDED = ("*.pyc", ".pytest_cache/")
ELSEWHERE = 66
# Given a directory, and files and links of the repositories below it: prints each place that they
# name outside of it, where something is that can be read.
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
# A bare repository that is no file of its project, such as a mirror beside it, is removed, and so
# are the files of another worktree: those of another commit.
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
# Where a folder cannot be opened `find` fails; it has looked through the others.
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
# So the commit has the same name in every box.
BORN = {
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}
LONGEST_S = 120.0


async def lay_out(box: Box, task: HarborTask, workdir: str = "") -> str:
    """Put a task's files into the directory of a box, and commit them there; the tree's name.

    Those of an image are in `workdir` already. Raises WorkFailed, as `commit_all`.
    """
    if task.testbed and not workdir:
        await box.copy_in(task.testbed)
    return await commit_all(box, workdir, f"task {task.name!r}")


async def commit_all(box: Box, workdir: str, whose: str) -> str:
    """Make a repository of one commit of all files in a directory of a box; the tree's name.

    Raises WorkFailed: `bad_config` where the box has no git, or where a repository there stands on
    one elsewhere that can be read, `deadline`, or what the box raises.
    """
    commit = ("/bin/sh", "-c", BASE, "sh", PLACES, OTHERS)
    ran = await box.run(commit, env=BORN, timeout_s=LONGEST_S, cwd=workdir or None)
    if ran.timed_out:
        msg = f"the files of {whose} are not committed within {LONGEST_S:g} s"
        raise WorkFailed("deadline", msg, retriable=True)
    said = ran.output.strip()[-500:]
    if ran.exit_code == ELSEWHERE:
        msg = f"a repository of {whose} stands on what its image has outside of {workdir}, where "
        msg += f"later commits could be read; remove that from the image: {said}"
        raise WorkFailed("bad_config", msg, retriable=False)
    if ran.exit_code:
        msg = f"the files of {whose} cannot be committed in the box: {said}"
        raise WorkFailed("bad_config", msg, retriable=False)
    return ran.output.split()[-1]
