"""`python -m compose.cli`: the same as `rollcall`."""

from compose.cli.entry import main

if __name__ == "__main__":  # a process that we spawn imports this module under another name
    main()
