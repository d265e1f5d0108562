"""How the processes are put together: embedded broker and registry, supervisor, command line."""
