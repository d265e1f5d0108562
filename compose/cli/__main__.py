"""`python -m compose.cli`: the same as `rollcall`."""

from rollcall_command import main

if __name__ == "__main__":  # a process that we spawn imports this module under another name
    main()
