"""Rollouts whose commands a test answers by hand."""

from typing import Any

from rollcall.consumers.loop.loop import Loop
from rollcall.schemas.messages import (
    EnvironmentStep,
    EnvironmentStepped,
    ModelCall,
    RolloutRequest,
)
from tests.support.journals import answer_to, request, said
from tests.support.programs import ASKS
from tests.support.rig import Rig, source_of


def ask(rig: Rig, rollout_id: str = "r", agent: str = ASKS, **fields: Any) -> RolloutRequest:
    asked = request(rollout_id, agent, **fields)
    rig.ask(asked)
    return asked


def calls(rig: Rig) -> list[ModelCall]:
    return rig.read(rig.topics.calls("p"), ModelCall)


def steps(rig: Rig) -> list[EnvironmentStep]:
    return rig.read(rig.topics.steps, EnvironmentStep)


def answer(rig: Rig, command: Any, body: Any = None) -> None:
    if body is None:
        body = said(command, "yes") if isinstance(command, ModelCall) else EnvironmentStepped("x")
    event = answer_to(command, body)
    rig.write(rig.topics.events, command.rollout_id, event, command.answer_partition)


def killed(loop: Loop) -> None:
    source_of(loop).kill()
