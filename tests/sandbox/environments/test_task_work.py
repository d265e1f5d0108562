"""The environment takes the work at a task as a patch, even from a manipulated box."""

import asyncio
import hashlib
import json
import os
import re
import resource
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from rollcall.sandbox.artefacts import HEAD_BYTES, ArtefactSpool
from rollcall.sandbox.boxes.box import Spec, driver
from rollcall.sandbox.boxes.shell import Shell
from rollcall.sandbox.boxes.tar_streams import of_directory
from rollcall.sandbox.environment import Observation, WaitingEnvironment, make_environment
from rollcall.sandbox.environments.work_patch import WorkPatch, take_patch
from rollcall.sandbox.grading.patches import MOST_BYTES
from rollcall.sandbox.tasks.harbor import HarborTask, read_task
from rollcall.sandbox.tasks.task_names import environment_config
from rollcall.sandbox.tasks.testbed import lay_out
from rollcall.schemas.errors import Unavailable, WorkFailed
from tests.support.engines import has, left_out
from tests.support.mortal_boxes import MortalHost
from tests.support.task_directories import GOLD, write_task

WORD = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SUBMIT = f"echo {WORD}"
MEND = "sed -i 's/a - b/a + b/' sums.py"


@pytest.fixture(params=["local", "bubblewrap"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "bubblewrap" and not has("bwrap"):
        left_out("bubblewrap", "work in its boxes that is taken")
    return str(request.param)


@pytest.fixture
def task(tmp_path: Path) -> HarborTask:
    return read_task(write_task(tmp_path / "sums", {"environment/testbed/data.bin": "\0\1\2" * 99}))


def host() -> MortalHost:
    return MortalHost(lambda *moment: None)


def episode(
    task: HarborTask, kind: str, *actions: str, given: MortalHost | None = None, **config: Any
) -> tuple[Observation, MortalHost]:
    """The last observation, and the stored objects."""
    lent = given or host()

    async def whole() -> Observation:
        text = json.dumps({**environment_config(task, box=kind), **config})
        made = make_environment("shell", text, lent)  # type: ignore[arg-type]
        environment = cast(WaitingEnvironment, made)
        try:
            seen = await environment.open(7)
            for action in actions:
                seen = await environment.step(action)
            return seen
        finally:
            await environment.close()

    return asyncio.run(whole()), lent


def artefacts(seen: Observation) -> dict[str, dict[str, Any]]:
    listed = cast(list[dict[str, Any]], seen.info.get("artefacts", []))
    return {each["name"]: each for each in listed}


def patch(seen: Observation, kept: MortalHost) -> bytes:
    """The stored patch, checked against its description in the observation."""
    told = artefacts(seen)["patch"]
    content = kept.kept[told["uri"]]
    assert told["size"] == len(content)
    assert told["sha256"] == hashlib.sha256(content).hexdigest()
    assert told["head"] == content[:HEAD_BYTES].decode(errors="replace")
    return content


def applied(task: HarborTask, content: bytes, work: Path) -> dict[str, bytes | str]:
    """The files that a patch leads to, as `git apply` of the judge makes them; links by target."""
    assert task.testbed
    subprocess.run(["cp", "-r", str(task.testbed), str(work)], check=True)
    apply = ["git", "apply", "--whitespace=nowarn", "-"]
    env = {"GIT_CEILING_DIRECTORIES": str(work.parent), "PATH": os.environ["PATH"]}
    done = subprocess.run(apply, cwd=work, input=content, capture_output=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    files = [path for path in work.rglob("*") if path.is_file() or path.is_symlink()]
    return {
        str(path.relative_to(work)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in files
    }


def test_patch_contains_the_final_state_of_the_files(
    kind: str, task: HarborTask, tmp_path: Path
) -> None:
    seen, kept = episode(
        task, kind, MEND,
        "printf 'caf\\351\\r\\nno end' > latin; printf '\\0\\377' > 'a b\\n'; ln -s sums.py link",
        "rm data.bin; mkdir -p deep/er __pycache__; : > deep/er/empty; echo x > __pycache__/y.pyc",
        "printf '#!/bin/sh\\n' > run; chmod +x run",
        "git add -A; git commit -qm mine; git rm -rq --cached .",
        "echo '*.log' > .gitignore; : > a.log",
        SUBMIT,
    )  # fmt: skip

    found = applied(task, patch(seen, kept), tmp_path / "work")

    assert (seen.terminated, seen.reward) == (True, 0.0)
    assert found == {
        "sums.py": b"def add(a, b):\n    return a + b\n",
        "tests/__init__.py": b"",
        "latin": b"caf\xe9\r\nno end",
        "a b\\n": b"\0\xff",
        "link": "sums.py",
        "deep/er/empty": b"",
        "run": b"#!/bin/sh\n",
        ".gitignore": b"*.log\n",
    }
    assert os.access(tmp_path / "work" / "run", os.X_OK)


def test_unchanged_work_gives_an_empty_patch_and_no_submission_gives_none(
    kind: str, task: HarborTask
) -> None:
    handed_in, kept = episode(task, kind, SUBMIT)
    looking, _ = episode(task, kind, "ls")
    cut_off, worked = episode(task, kind, "ls", MEND, max_steps=2)

    assert patch(handed_in, kept) == b""
    assert artefacts(looking) == {}
    assert cut_off.truncated
    assert b"+    return a + b" in patch(cut_off, worked)


HOOK = "printf '#!/bin/sh\\ntouch ~/ran $TMPDIR/ran; sleep 99' > {0}; chmod +x {0}; "
HOSTILE = {
    "no repository": "rm -rf .git",
    "another repository": "rm -rf .git; git init -q; git add -A; git commit -qm x --allow-empty",
    "a file in its place": "rm -rf .git; echo gitdir: /etc > .git",
    "a link in its place": "rm -rf .git; ln -s /etc .git",
    "a pipe in its place": "rm -rf .git; mkfifo .git",
    "pipes among its objects": "rm -rf .git/objects; mkfifo .git/objects .git/index.lock",
    "base is another commit": "git commit -qam x; git tag -f base; git gc -q",
    "hooks": HOOK.format(".git/hooks/post-index-change") + "git config core.hooksPath .git/hooks",
    "a monitor": HOOK.format("$TMPDIR/m") + "git config core.fsmonitor $TMPDIR/m",
    "a diff driver": HOOK.format("$TMPDIR/m") + "git config diff.external $TMPDIR/m; "
    "git config diff.x.command $TMPDIR/m; git config diff.x.textconv $TMPDIR/m; "
    "echo '* diff=x' > .git/info/attributes",
    "drivers for all": HOOK.format("$TMPDIR/m") + "git config --global diff.external $TMPDIR/m; "
    "git config --global filter.x.clean $TMPDIR/m; mkdir -p .config/git; "
    "printf '* filter=x diff=x' > .config/git/attributes; "
    "printf '*.gitconfig\\n.config\\n' > .git/info/exclude; rm -rf ~/.config",
    "attributes": "printf '* -diff filter=x text eol=crlf ident\\n' > .git/info/attributes",
    "unreadable": "chmod 000 sums.py .git",
    "variables": "export GIT_DIR=/nowhere GIT_EXTERNAL_DIFF=$TMPDIR/m GIT_INDEX_FILE=/x PATH=/none",
    "a server": "setsid sh -c 'while :; do :; done' & nohup sleep 99 &",
    "a pipe as a file": "rm data.bin; mkfifo data.bin; mkfifo p; git checkout -q base data.bin",
    "its own commands": "git() { echo mine; }; find() { :; }; cd /; alias cd=:",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_manipulated_repository_does_not_prevent_the_patch(
    task: HarborTask, name: str, tmp_path: Path
) -> None:
    kind = "bubblewrap" if has("bwrap") else "local"
    seen, kept = episode(task, kind, f"{MEND}; {HOSTILE[name]}", f"/bin/echo {WORD}")

    content = patch(seen, kept)

    found = applied(task, content, tmp_path / "work")
    assert found["sums.py"] == b"def add(a, b):\n    return a + b\n"
    assert "ran" not in found
    assert set(found) <= {"sums.py", "tests/__init__.py", "data.bin", ".gitconfig"}


@pytest.mark.parametrize(
    "flood",
    [
        "truncate -s 1G big",
        "i=0; while [ $i -lt 33 ]; do truncate -s 4M f$i; i=$((i+1)); done",
        "seq 1 20002 | xargs touch",
        "head -c 40000000 /dev/urandom > noise",
        "truncate -s 500M data.bin",
    ],
)
def test_oversized_patch_is_reported_by_size_and_not_stored(task: HarborTask, flood: str) -> None:
    kind = "bubblewrap" if has("bwrap") else "local"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    seen, kept = episode(task, kind, f"{MEND}; {flood}", SUBMIT)

    told = artefacts(seen)["patch"]
    assert told["size"] > MOST_BYTES
    assert told["head"].startswith("not kept: ")
    assert (told["uri"], told["sha256"]) == ("", "")
    assert kept.kept == {}
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kb < 48 << 10


def test_unavailable_object_store_gives_a_retriable_step_error(task: HarborTask) -> None:
    class Away(MortalHost):
        def keep(self, name: str, content: bytes) -> str:
            msg = "it is away"
            raise Unavailable(msg)

    with pytest.raises(WorkFailed, match="it is away") as failed:
        episode(task, "local", SUBMIT, given=Away(lambda *moment: None))

    assert (failed.value.code, failed.value.retriable) == ("objects_away", True)


def test_truncated_output_is_stored_in_full(kind: str, task: HarborTask) -> None:
    seen, kept = episode(task, kind, "seq 1 20000; pwd; printf '\\377'", head_chars=5, tail_chars=7)
    short, other = episode(task, kind, "seq 1 9", head_chars=10, tail_chars=8)

    told = artefacts(seen)["output"]
    home = "~" if kind == "local" else "/w"
    whole = "".join(f"{n}\n" for n in range(1, 20001)) + f"{home}\n\N{REPLACEMENT CHARACTER}"
    assert kept.kept[told["uri"]].decode() == whole
    assert told["size"] == len(whole.encode())
    assert (artefacts(short), other.kept) == ({}, {})


def test_stored_output_of_an_episode_is_limited_and_marked_as_cut(
    task: HarborTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollcall.sandbox.environments.shell_commands.EPISODE_BYTES", 3_000_000)
    flood = "head -c 2000000 /dev/zero | tr '\\0' x"

    first, _ = episode(task, "local", flood)
    second, kept = episode(task, "local", flood, flood)
    third, _ = episode(task, "local", flood, flood, flood)

    assert "cut" not in artefacts(first)["output"]
    assert artefacts(second)["output"]["cut"]
    assert sorted(map(len, kept.kept.values())) == [1_000_000, 2_000_000]
    assert artefacts(third) == {}


def test_applied_gold_patch_is_taken_back_from_the_work_directory(
    kind: str, task: HarborTask, tmp_path: Path
) -> None:
    apply = f"cat > $TMPDIR/p$$ <<'END'\n{GOLD}END\ngit apply $TMPDIR/p$$; rm $TMPDIR/p$$"

    seen, kept = episode(task, kind, apply, SUBMIT)

    assert applied(task, patch(seen, kept), tmp_path / "a")["sums.py"].endswith(b"a + b\n")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("harm", "untaken"),
    [
        (":", ""),
        ("git add -A; git commit -qm mine; git tag -f base", ""),
        ("git config core.fsmonitor 'sleep 99'; git config core.worktree /etc", ""),
        ("rm -rf .git", "bad object|not a tree|failed to unpack tree"),
    ],
)
def test_base_that_exists_only_in_the_image_comes_from_its_repository(
    task: HarborTask, harm: str, untaken: str, tmp_path: Path
) -> None:
    async def whole() -> tuple[WorkPatch, bytes]:
        box = await driver("local").open(Spec())
        try:
            place = f"{box.directory.decode()}/it's here"
            assert task.testbed
            await box.put(of_directory(task.testbed), place)
            tree = await lay_out(box, replace(task, directory=tmp_path / "none"), place)
            shell = Shell(box, workdir=place)
            assert (await shell.run(f"{MEND}; {harm}", timeout_s=20.0)).exit_code == 0
            assert (await shell.run("exit", timeout_s=20.0)).fresh
            assert (await shell.run("ls sums.py", timeout_s=20.0)).output == "sums.py\n"
            with closing(ArtefactSpool(MOST_BYTES)) as spool:
                taken = await take_patch(box, spool, workdir=place, base=None, tree=tree)
                return taken, spool.read()
        finally:
            await box.close()

    taken, content = asyncio.run(whole())

    assert bool(taken.untaken) == bool(untaken)
    assert re.search(untaken, taken.untaken)
    if not untaken:
        assert applied(task, content, tmp_path / "work")["sums.py"] == (
            b"def add(a, b):\n    return a + b\n"
        )


COMMIT = "git add -A; git -c user.name=a -c user.email=a@b commit -qm x"
NESTED = "mkdir -p pkg/in; cd pkg; git init -q; echo x > in/new.py; {}; cd ..", "pkg/in/new.py"
IGNORE = "printf 'build/\\n*.log\\n' > .gitignore; mkdir build; echo x > build/new.py; "
TAKEN_OR_NAMED: dict[str, tuple[str, set[str], list[str]]] = {
    # Commands, files that are taken, and paths that are named as left out
    "a nested repository": (NESTED[0].format(":"), {NESTED[1]}, ["pkg/.git"]),
    "one with a commit": (NESTED[0].format(COMMIT), {NESTED[1]}, ["pkg/.git"]),
    "one that is a file": (
        "mkdir pkg; echo 'gitdir: ../x' > pkg/.git; echo x > pkg/y", {"pkg/y"}, ["pkg/.git"],
    ),
    "a submodule": (
        NESTED[0].format(COMMIT) + "; git add pkg; git commit -qm sub; echo y > pkg/in/new.py",
        {NESTED[1]}, ["pkg/.git"],
    ),
    "a folder that becomes one": (
        f"cd tests; git init -q; {COMMIT}; echo x >> __init__.py; echo x > y; cd ..",
        {"tests/__init__.py", "tests/y"}, ["tests/.git"],
    ),
    "ignored files": (IGNORE + "echo x > a.log", {".gitignore"}, ["a.log", "build/new.py"]),
    "added by force": (
        IGNORE + "echo x > a.log; git add -f build", {".gitignore", "build/new.py"}, ["a.log"],
    ),
    "committed by force": (
        IGNORE + "git add -f build; git commit -qm x", {".gitignore", "build/new.py"}, [],
    ),
    "names that git has a meaning for": (
        IGNORE + "echo x > ':(top)a.log'; echo x > ':(glob)*'; echo x > '[b]'",
        {".gitignore", ":(glob)*", "[b]"}, [":(top)a.log", "build/new.py"],
    ),
    "what Python leaves": (
        "mkdir __pycache__ .pytest_cache; touch __pycache__/a.pyc .pytest_cache/b; "
        "echo x > __pycache__/y.py", {"__pycache__/y.py"}, [],
    ),
    "what no patch can hold": ("mkdir empty; mkfifo pipe", set(), ["pipe", "empty/"]),
    "a folder renamed, with a link in it": (
        "mkdir old; ln -s ../sums.py old/up; mv old new; mv tests old",
        {"new/up", "old/__init__.py", "tests/__init__.py"}, [],
    ),
    "many": ("seq -f build/%03.0f 30 > l; " + IGNORE + "xargs touch < l; rm l", {".gitignore"},
             [f"build/{n:03}" for n in range(1, 21)] + ["and 11 more"]),
}  # fmt: skip


@pytest.mark.parametrize("case", TAKEN_OR_NAMED)
def test_files_that_git_would_skip_are_taken_or_named(
    kind: str, task: HarborTask, case: str, tmp_path: Path
) -> None:
    done, files, named = TAKEN_OR_NAMED[case]

    seen, kept = episode(task, kind, f"{done}; rm data.bin", SUBMIT)

    content = patch(seen, kept)
    changed = set(re.findall(r"^diff --git a/(.*) b/\1$", content.decode(), re.MULTILINE))
    assert changed == files | {"data.bin"}
    assert seen.info.get("left_out", []) == named


@pytest.mark.parametrize(
    "harm",
    [
        "chmod 000 $TMPDIR",
        "rm -rf $TMPDIR 2>/dev/null; touch $TMPDIR",
        "head -c 300M /dev/zero > $TMPDIR/full; head -c 300M /dev/zero > /tmp/full",
    ],
)
def test_full_or_locked_temporary_folder_does_not_prevent_the_patch(
    task: HarborTask, harm: str, tmp_path: Path
) -> None:
    if not has("bwrap"):
        left_out("bubblewrap", "work that is taken where its folder for temporary files is full")
    limits = {"disk_bytes": 200 << 20}

    seen, kept = episode(task, "bubblewrap", f"{MEND}; {harm}", SUBMIT, limits=limits)

    found = applied(task, patch(seen, kept), tmp_path / "work")
    assert found["sums.py"] == b"def add(a, b):\n    return a + b\n"
    assert found.keys() == {"sums.py", "tests/__init__.py", "data.bin"}


def test_work_that_slows_git_past_its_timeout_gives_no_patch(
    task: HarborTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollcall.sandbox.environments.work_patch.TAKE_S", 2.0)
    slow = "seq -f 'q%.0f*x' 300000 > .gitignore; mkdir d; cd d; seq 19000 | xargs touch; cd .."

    seen, _ = episode(task, "bubblewrap" if has("bwrap") else "local", slow, SUBMIT)

    assert artefacts(seen) == {}
    assert seen.info["no_patch"] == "git makes no patch of it within 2 s"
