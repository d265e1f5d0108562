"""The environments group: runs sessions in threads, so that a slow or hung one stops no other.

Every rollout belongs to one thread, which answers its steps in order and writes the answers itself.
The thread of the loop watches the others. If a step takes long, its thread keeps only that rollout,
and all other sessions and steps of the thread move to a new one. A step past its deadline is
answered as failed, and its thread is abandoned with that session; likewise if a thread died.
"""
