"""A task's files in a box: a repository of one commit, called `base`, whatever the files say.

What an agent has changed is the difference from there, with files that it added, without what
Python and pytest leave behind. The files' own attributes for git count for nothing, so a patch
holds their bytes as they are.
"""

from sandbox.boxes.box import Box
from sandbox.tasks.git_trees import ATTRIBUTES
from sandbox.tasks.harbor import HarborTask
from schemas.errors import WorkFailed

EXCLUDED = ("*.pyc", ".pytest_cache/")
BASE = f"""\
set -e
git init -q .
git config user.name agent
git config user.email agent@localhost
git config core.autocrlf false
echo '{ATTRIBUTES.strip()}' > .git/info/attributes
printf '%s\\n' {" ".join(f"'{each}'" for each in EXCLUDED)} >> .git/info/exclude
git add -A -f .
git commit -q --allow-empty --no-verify -m base
git tag -f base >/dev/null
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

    Those of an image are in `workdir` already. Raises WorkFailed: `bad_config` where the box has no
    git, `deadline`, or what the box raises.
    """
    if task.testbed and not workdir:
        await box.copy_in(task.testbed)
    commit = ("/bin/sh", "-c", BASE)
    ran = await box.run(commit, env=BORN, timeout_s=LONGEST_S, cwd=workdir or None)
    if ran.timed_out:
        msg = f"the files of task {task.name!r} are not committed within {LONGEST_S:g} s"
        raise WorkFailed("deadline", msg, retriable=True)
    if ran.exit_code:
        said = ran.output.strip()[-500:]
        msg = f"the files of task {task.name!r} cannot be committed in the box: {said}"
        raise WorkFailed("bad_config", msg, retriable=False)
    return ran.output.split()[-1]
