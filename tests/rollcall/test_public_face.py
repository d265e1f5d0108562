"""What users import stands on one page, is typed, and is what its page says."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import rollcall
from consumers.agents.programs import program_of
from consumers.agents.wishes import CallModel, Finish
from rollcall import Message, ModelAnswer, Task
from schemas.names import ROOMS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "rollcall" / "__init__.py").read_text()
NEEDS_TORCH = {"Clip", "Costs", "Loss"}


def test_every_name_of_the_face_is_documented_on_its_page_and_the_other_way_round() -> None:
    description = str(rollcall.__doc__).partition("Example:")[0]
    documented = re.findall(r"`(\w+)`", description)

    assert sorted(documented) == rollcall.__all__


def test_every_name_of_the_face_is_there() -> None:
    assert [name for name in rollcall.__all__ if not hasattr(rollcall, name)] == []
    with pytest.raises(AttributeError, match="module 'rollcall' has no attribute 'Journal'"):
        _ = rollcall.Journal  # type: ignore[attr-defined]


def test_the_face_is_there_without_torch() -> None:
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


def test_the_example_on_the_page_is_a_program_that_runs(
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


def test_code_of_a_users_is_checked_against_the_face(tmp_path: Path) -> None:
    # Given a module in a folder of its own, with one mistake of each kind
    (tmp_path / "mine.py").write_text(
        "from rollcall import Journal, Observation, Scorer\n"
        "wrong: Scorer = len\n"
        "seen = Observation('text', reward='1')\n"
    )

    # When it is checked as it would be beside an installed Rollcall
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"),
         "--cache-dir", str(tmp_path), "mine.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip

    # Then each is found, and nothing else
    found = re.findall(r"mine.py:(\d): error:.*\[([a-z-]+)\]", done.stdout)
    assert found == [("1", "attr-defined"), ("2", "assignment"), ("3", "arg-type")], done.stdout


@pytest.mark.parametrize("room", ROOMS)
def test_every_package_says_that_it_is_typed(room: str) -> None:
    assert (ROOT / room / "py.typed").is_file()
