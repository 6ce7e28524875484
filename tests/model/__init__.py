"""An exhaustive check of how a queue changes hands between direct takes and stream messages.

Reading order: rules.py (what can be taken away), state.py, one file for each actor (slots.py, raw_worker.py, relay.py,
surroundings.py), protocol.py (all steps together), explorer.py (the search), test_queue_modes.py.
"""
