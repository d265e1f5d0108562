"""`python -m rollcall`: the same as the command `rollcall`."""

from rollcall.compose.cli.__main__ import main

if __name__ == "__main__":
    main()
