"""The engine that serves a policy: ours by name, or any other by module:function.

`openai` has no weights: it serves a policy that is not trained, so it is refused with anything that
announces versions.
"""

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from rollcall.compose.extras import require
from rollcall.inference.engine import Engine
from rollcall.inference.vllm_place import require_vllm
from rollcall.schemas import names
from rollcall.schemas.errors import Refused

if TYPE_CHECKING:
    from rollcall.compose.runs.recipe import Recipe
    from rollcall.compose.settings import ModelsSettings, OpenAISettings, Settings
    from rollcall.inference.openai_api import Api
    from rollcall.inference.openai_client import OpenAIServer

ENGINES = {
    "transformers": "rollcall.inference.transformers_engine:TransformersEngine",
    "vllm": "rollcall.inference.vllm_engine:VllmEngine",
}
OPENAI = "openai"
"""The engine of a server with the OpenAI API; see `rollcall.inference.openai_engine`."""


def options_of(models: "ModelsSettings") -> dict[str, Any]:
    """Return the keyword arguments of every engine."""
    return {"device": models.device, "max_batch": models.max_batch, "threads": models.threads}


def check_engine(name: str) -> None:
    """Raise Refused for an unknown name; nothing is imported."""
    if name not in (*ENGINES, OPENAI) and ":" not in name:
        raise names.unknown_name("engine", name, [*ENGINES, OPENAI])


def check_loads_weights(name: str, what: str) -> None:
    """Raise Refused for an engine that cannot serve `what`, which announces weights."""
    check_engine(name)
    if name == OPENAI:
        msg = (
            f"{what} announces weights, and those behind engine {OPENAI!r} are not ours to load, "
            "nor are token ids of theirs sure to come back; set models.engine to transformers, or "
            f"serve a policy that nobody trains: rollcall worker models --policy NAME --engine "
            f"{OPENAI}"
        )
        raise Refused(msg)


def check_recipe(name: str, recipe: "Recipe") -> None:
    """Raise Refused for an unknown engine, or one that cannot serve a recipe's policies."""
    check_engine(name)
    if any(not part.policy.script for part in recipe.parts()):
        check_loads_weights(name, f"recipe {recipe.name!r}")


def check_exact(settings: "Settings", recipe: "Recipe") -> None:
    """Raise Refused if engine and trainer are required to agree to the bit, and cannot."""
    for part in recipe.parts():
        if part.learner.computation.exact or recipe.learner.computation.exact:
            _check_exact(settings, part)


def _check_exact(settings: "Settings", recipe: "Recipe") -> None:
    models, training = settings.models, settings.training
    for what, found, needed in (
        ("models.engine", models.engine, "transformers"),
        ("models.device", models.device, "cpu"),
        ("models.python", models.python, ""),
        ("models.threads", models.threads, training.threads),
        ("training.device", training.device, "cpu"),
        ("the recipe's policy.publish", recipe.policy.publish or "float32", "float32"),
        ("the recipe's policy.script", recipe.policy.script, ""),
    ):
        if found != needed:
            msg = (
                f"[learner] exact needs {what} {needed!r}, and it is {found!r}: only the same "
                "kernels on the same shapes give the same bits; set it so, or take exact out"
            )
            raise Refused(msg)


def check_models(models: "ModelsSettings") -> None:
    """Raise Refused, before anything is started, if no worker could serve weights."""
    check_engine(models.engine)
    python = models.python
    if python and not (os.access(python, os.X_OK) and Path(python).is_file()):
        msg = (
            f"models.python is {python!r}, which is no program; name the Python of an "
            "environment, such as .venv/vllm/bin/python after `make vllm`, or take it out"
        )
        raise Refused(msg)
    if models.engine == "vllm":
        require_vllm(models.device, python)


def load_engine(name: str) -> Callable[..., Any]:
    """Return the factory of the engine of this name. Raises Refused if there is none."""
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


def weights_engine(
    policy_id: str, directory: Path, models: "ModelsSettings", *, exact: bool = False
) -> Engine:
    """Make the engine that the settings name, on a policy directory.

    Its arguments are policy id and directory, and by name `device`, `max_batch` and `threads`; for
    ours also `exact`, if it must agree with the trainer to the bit. Raises Refused for an unknown
    name, and for a result that is no engine.
    """
    name = models.engine
    check_loads_weights(name, f"the policy in {str(directory)!r}")
    make = load_engine(name)
    options = options_of(models)
    if exact:
        options["exact"] = True
    engine = make(policy_id, directory, **options)
    _check(name, engine, policy_id)
    return cast(Engine, engine)


def server_engine(policy_id: str, directory: Path | None, models: "ModelsSettings") -> Engine:
    """Make the engine that calls the settings' server, with a directory's tokenizer.

    Raises Refused for invalid settings.
    """
    from rollcall.inference.openai_engine import OpenAIEngine

    options = models.openai
    server = _server(options)
    return OpenAIEngine(
        policy_id, server, _api(options, directory), concurrency=options.concurrency
    )


def _server(options: "OpenAISettings") -> "OpenAIServer":
    from rollcall.inference.openai_client import OpenAIServer

    _check_address(options.base_url)
    if not options.model:
        msg = "models.openai.model is empty; give the name that the server has for its model"
        raise Refused(msg)
    name = options.api_key_env
    key = os.environ.get(name, "").strip() if name else ""
    if name and not (key and key.isascii() and key.isprintable()):
        found = "holds what no header can carry" if key else "is not set"
        msg = (
            f"models.openai.api_key_env names {name}, which {found}; export the server's key in it"
        )
        raise Refused(msg)
    return OpenAIServer(
        options.base_url, options.model, key, name, options.timeout_s, options.retries
    )


def _check_address(base_url: str) -> None:
    try:
        parts = urlsplit(base_url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        known = False
    if not known:
        msg = (
            f"models.openai.base_url is {base_url!r}; give the address that clients of the server "
            "take, such as http://127.0.0.1:8000/v1"
        )
        raise Refused(msg)
    if "@" in parts.netloc:
        msg = (
            f"models.openai.base_url for {parts.hostname} holds a user or password, which would "
            "stand in logs; put the key into a variable that models.openai.api_key_env names"
        )
        raise Refused(msg)


def _api(options: "OpenAISettings", directory: Path | None) -> "Api":
    from rollcall.inference.openai_api import ChatMessages, TokenCompletions

    if options.api == "chat":
        if directory is not None:
            msg = (
                "models.openai.api is chat, which needs no tokenizer; leave --directory out, or "
                "set it to completions"
            )
            raise Refused(msg)
        return ChatMessages(options.model, options.body)
    if directory is None:
        msg = (
            "models.openai.api is completions, which sends token ids; name by --directory a folder "
            "with the tokenizer and rollcall.json of the model that the server has"
        )
        raise Refused(msg)
    require("torch", "transformers")
    from rollcall.inference.policy_dir import load_template, vocabulary_of

    tokenizer, template = load_template(directory)
    size = vocabulary_of(directory, tokenizer)
    return TokenCompletions(options.model, options.body, tokenizer, template, size)


def _check(name: str, engine: object, policy_id: str) -> None:
    promised = [*Engine.__annotations__, *vars(Engine)]
    missing = [each for each in promised if not each.startswith("_") and not hasattr(engine, each)]
    if missing:
        msg = (
            f"engine {name!r} made a {type(engine).__name__} without {', '.join(missing)}; "
            "`rollcall.inference.engine.Engine` says what an engine has"
        )
        raise Refused(msg)
    serves = cast(Engine, engine).policy_id
    if serves != policy_id:
        msg = f"engine {name!r} serves {serves!r}; it was asked for {policy_id!r}"
        raise Refused(msg)
