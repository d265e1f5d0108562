"""`python -m compose.cli`: the same as `rollcall`."""

from compose.cli.app import main

main()
