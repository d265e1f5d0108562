"""The command `rollcall`, also as `python -m rollcall.compose.cli`."""

import sys

INTERRUPTED = 130


def main() -> None:
    """Load the commands, which takes a moment, and call one. A Ctrl-C meanwhile prints nothing."""
    try:
        from rollcall.compose.cli.app import main as command_line
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    command_line()


if __name__ == "__main__":  # a spawned process imports this module under another name
    main()
