"""The entry point of earlier editable installs' scripts; now it is `rollcall_command`."""

from rollcall_command import main as main
