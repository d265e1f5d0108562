"""A command and all that it starts, which end with whoever runs this, however that ends.

`python -m tests.support.guarded COMMAND ARGUMENTS`, and SIGTERM to end it.
"""

import os
import signal
import subprocess
import sys

from rollcall.sandbox import process_tree

if __name__ == "__main__":
    process_tree.adopt_orphans()
    process_tree.end_on_sigterm()
    process_tree.signal_on_parent_death(os.getppid(), signal.SIGTERM)
    sys.exit(process_tree.guard(subprocess.Popen(sys.argv[1:]).pid))
