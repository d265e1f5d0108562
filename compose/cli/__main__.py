"""`python -m compose.cli`: the same as `rollcall`."""

from rollcall_command import main

if __name__ == "__main__":  # a spawned process imports this module under another name
    main()
