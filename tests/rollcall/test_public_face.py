"""The public names stand on one page, are typed, and match their documentation."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import rollcall
from rollcall import Message, ModelAnswer, Task
from rollcall.consumers.agents.effects import CallModel, Finish
from rollcall.consumers.agents.programs import program_of
from rollcall.schemas.former_names import FORMER
from tests.support.pages import users_code
from tests.support.rooms import ROOMS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "rollcall" / "__init__.py").read_text()
NEEDS_TORCH = {"Costs", "Loss", "Tokens"}


def test_public_names_and_their_documentation_match() -> None:
    description = str(rollcall.__doc__).partition("Example:")[0]
    documented = re.findall(r"`(\w+)`", description)

    assert sorted(documented) == rollcall.__all__


def test_every_public_name_exists() -> None:
    assert [name for name in rollcall.__all__ if not hasattr(rollcall, name)] == []
    with pytest.raises(AttributeError, match="'Journal'"):
        _ = rollcall.Journal  # type: ignore[attr-defined]


def test_public_names_are_importable_without_torch() -> None:
    absent = f"""
        import sys
        sys.modules["torch"] = None
        import rollcall
        print([name for name in rollcall.__all__ if name not in {NEEDS_TORCH}
               and not hasattr(rollcall, name)])
        try:
            rollcall.Costs
        except ModuleNotFoundError as error:
            print(error.name)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(absent)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    assert done.stdout.split() == ["[]", "torch"]


def test_example_on_the_page_is_a_program_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = textwrap.dedent(PAGE.partition("Example:\n")[2].partition('"""')[0])
    (tmp_path / "example_of_the_face.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    task = Task("7 * 6?", "Be brief.", "", 1, "", lambda: pytest.fail("it draws nothing"))

    program = program_of("example_of_the_face:asks_once")(task)

    question = next(program)
    assert isinstance(question, CallModel)
    assert [message.content for message in question.messages] == ["Be brief.", "7 * 6?"]
    assert program.send(ModelAnswer(Message("assistant", "42"), "stop")) == Finish("42")


def test_user_code_is_type_checked_against_the_public_interface(tmp_path: Path) -> None:
    # Given modules in a folder of their own: what the pages show, and one with some mistakes
    (tmp_path / "of_the_pages.py").write_text("\n".join(users_code()))
    (tmp_path / "mine.py").write_text(
        "from rollcall import Journal, Observation, Scorer\n"
        "wrong: Scorer = len\n"
        "seen = Observation('text', reward='1')\n"
    )

    # When it is checked as it would be beside an installed Rollcall
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"),
         "--cache-dir", str(tmp_path), "mine.py", "of_the_pages.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip

    # Then each mistake is found, and nothing else
    errors = re.findall(r"(\w+).py:(\d+): error:.*\[([a-z-]+)\]", done.stdout)
    assert errors == [
        ("mine", "1", "attr-defined"), ("mine", "2", "assignment"), ("mine", "3", "arg-type"),
    ], done.stdout  # fmt: skip


def test_documented_code_imports_only_the_public_package() -> None:
    packages = re.findall(r"^(?:from|import) (\w+)", "\n".join(users_code()), re.MULTILINE)

    assert set(packages) & {*ROOMS, *FORMER} == {"rollcall"}


@pytest.mark.parametrize("room", ROOMS)
def test_every_package_is_marked_as_typed(room: str) -> None:
    assert (ROOT / room / "py.typed").is_file()
