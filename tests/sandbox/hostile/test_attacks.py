"""Every attack on every driver that claims isolation reaches nothing and leaves nothing.

Bubblewrap is attacked if it is installed, as root and as an ordinary user if root runs the
tests; otherwise this is skipped with a message.
"""

import asyncio

import pytest

from tests.support.attacks import ATTACKS
from tests.support.command_line import ROOT
from tests.support.engines import left_out
from tests.support.tiers import cases
from tests.support.under_attack import HELD, NOT_CLAIMED, attacked, drivers

if not drivers():
    left_out("bubblewrap", "every attack on a box")


def test_attack_list_has_at_least_forty_unique_names() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 40


def test_expected_docker_engine_is_available() -> None:
    if "docker" not in drivers():
        left_out("docker", "every attack on a container; `.ci/docker` starts an engine")
    assert asyncio.run(drivers()["docker"].unavailable()) == ""


@pytest.mark.parametrize("name", cases(drivers()))
def test_no_attack_reaches_the_host_or_leaves_traces(name: str) -> None:
    driver = drivers()[name]

    came = asyncio.run(attacked(driver))

    assert {attack: how for attack, how in came.items() if how not in (HELD, NOT_CLAIMED)} == {}
    unclaimed = [attack.claim for attack in ATTACKS if came[attack.name] == NOT_CLAIMED]
    enforced = driver.enforces()
    assert all(claim not in enforced for claim in unclaimed)


def test_readme_table_has_a_row_for_every_attack() -> None:
    page = (ROOT / "sandbox" / "boxes" / "README.md").read_text()

    rows = page.partition("\n| attack |")[2].partition("\n\n")[0].splitlines()[2:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [
        attack.name for attack in ATTACKS
    ]
