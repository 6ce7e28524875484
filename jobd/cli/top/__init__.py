"""`jobd top`: command (keys, signals, polling), rates (snapshots and how fast counters move), frame (what is drawn)."""
