"""A gate that a module waits at while it is imported, until a test opens it."""

import threading

GATE = threading.Event()
