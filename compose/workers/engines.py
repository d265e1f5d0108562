"""Which engine serves a policy's weights: ours by name, or anybody's by module:function."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from inference.engine import Engine
from schemas import names
from schemas.errors import Refused

if TYPE_CHECKING:
    from compose.settings import ModelsSettings

ENGINES = {"transformers": "inference.transformers_engine:TransformersEngine"}
ABSENT = {
    "vllm": "vLLM in the worker's process",
    "openai": "a server that speaks the OpenAI API",
}
"""Named for what they will be; asking for one is answered with what there is."""


def options_of(models: "ModelsSettings") -> dict[str, Any]:
    """What every engine is told by name."""
    return {"device": models.device, "max_batch": models.max_batch, "threads": models.threads}


def check_engine(name: str) -> None:
    """Raise Refused for a name that is none; nothing is imported."""
    if name in ABSENT:
        msg = (
            f"engine {name!r}, {ABSENT[name]}, is not in this release; set models.engine to "
            f"{', '.join(ENGINES)}, or to the module:function of one of your own"
        )
        raise Refused(msg)
    if name not in ENGINES and ":" not in name:
        raise names.unknown("engine", name, [*ENGINES, *ABSENT])


def load_engine(name: str) -> Callable[..., Any]:
    """What makes the engine of this name. Raises Refused where there is none."""
    check_engine(name)
    make = names.load("engine", ENGINES.get(name, name))
    try:
        inspect.signature(make).bind("", Path(), device="", max_batch=1, threads=1)
    except (TypeError, ValueError) as error:
        msg = (
            f"engine {name!r} cannot be called with a policy id, a directory, device=, max_batch= "
            f"and threads=: {error}"
        )
        raise Refused(msg) from error
    return make


def weights_engine(policy_id: str, directory: Path, models: "ModelsSettings") -> Engine:
    """The engine that the settings name, on a policy directory.

    It is called with policy id and directory, and by name with `device`, `max_batch` and `threads`.
    Raises Refused for a name that is none, and for what is no engine.
    """
    name = models.engine
    make = load_engine(name)
    engine = make(policy_id, directory, **options_of(models))
    _check(name, engine, policy_id)
    return cast(Engine, engine)


def _check(name: str, engine: object, policy_id: str) -> None:
    promised = [*Engine.__annotations__, *vars(Engine)]
    missing = [each for each in promised if not each.startswith("_") and not hasattr(engine, each)]
    if missing:
        msg = (
            f"engine {name!r} made a {type(engine).__name__} without {', '.join(missing)}; "
            "`inference.engine.Engine` says what an engine has"
        )
        raise Refused(msg)
    serves = cast(Engine, engine).policy_id
    if serves != policy_id:
        msg = f"engine {name!r} serves {serves!r}; it was asked for {policy_id!r}"
        raise Refused(msg)
