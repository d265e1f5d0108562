"""The assembly of the processes: embedded broker and registry, supervisor, command line."""
