"""Leases by the clock of their holder: renewed in time, or given up before another may take over.

flag       whether a lease is lost or its job canceled, for those who ask and those who wait
timer      what a holder knows of its lease, and the timer that stops it before the lease ends
keeper     renews many leases together; the one keeper for jobs, ticket claims and the remote worker
jobs       the leases of the jobs that run in this process
watchdog   a thread that renews them while a handler blocks the event loop
"""
