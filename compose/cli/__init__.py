"""The command line: what a person types, read, called and printed; nothing is decided here.

Whatever is imported below needs our own packages, so it is looked here whether they are found.
"""

from rollcall_command import refuse_a_clash

refuse_a_clash()
