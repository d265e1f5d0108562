"""Options that several commands share, given to a command as the one value that they name."""

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
    """A decorator: in place of its `parameter` a command takes `options`, by name the annotation
    and the default; what `build` makes of them is that parameter. They stand before or behind the
    command's own.
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
