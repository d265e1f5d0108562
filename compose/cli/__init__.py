"""The command line: it parses options, calls functions and prints results; no logic of its own.

The modules below import our own packages, so it is checked here that these are found.
"""

from rollcall_command import refuse_a_clash

refuse_a_clash()
