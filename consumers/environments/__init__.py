"""The environments group: sessions live in threads, so that one which is slow or hangs is alone.

Every rollout belongs to one thread, which answers its steps in order and writes the answers itself.
The loop's thread watches. Behind a step that takes long nobody waits: its thread is left alone
with its rollout, and all other sessions and steps of that thread move to a new one. A step past its
time is answered as failed and its thread abandoned with that session; so is one whose thread died.
"""
