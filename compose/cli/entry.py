"""The beginning that scripts of an earlier editable install name; `rollcall_command` is today's."""

from rollcall_command import main as main
