"""Where a process of the command line begins; a Ctrl-C while it loads ends it without a word."""

import sys
from typing import NoReturn

INTERRUPTED = 130


def main() -> NoReturn:
    """Load the commands, which takes a while, and call one."""
    try:
        from compose.cli.app import main as command_line
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    command_line()
