"""Sets of options that several commands share, passed to a command as one value."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

Command = Callable[..., Any]


def takes(
    parameter: str,
    options: Mapping[str, tuple[Any, Any]],
    build: Callable[..., Any],
    *,
    first: bool = False,
) -> Callable[[Command], Command]:
    """Return a decorator that replaces a command's `parameter` by `options` (annotation and default
    by name); `build` makes the parameter's value of them. They come before or after the command's
    own options.
    """
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in options.items()
    ]

    def taking(command: Command) -> Command:
        own = inspect.signature(command).parameters
        kept = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, each in own.items()
            if name != parameter
        ]

        def taken(**values: Any) -> Any:
            value = build(**{name: values.pop(name) for name in options})
            return command(**{parameter: value}, **values)

        taken.__name__, taken.__doc__ = command.__name__, command.__doc__
        order = [*added, *kept] if first else [*kept, *added]
        taken.__signature__ = inspect.Signature(order)  # type: ignore[attr-defined]
        return taken

    return taking
