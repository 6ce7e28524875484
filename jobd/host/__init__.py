"""The machine below jobd: files, locks, processes, accounts, logs.

data_dir      the data directory: what lies where, and the lock that says whose it is
locks         locks that a child process inherits
files         files that are written whole or not at all
account       the unix account of the embedded servers
process       child processes: start, watch, stop
space         room on a disk and in memory
systemd       notifications to systemd
installation  whether another package of the name is mixed with jobd, and what the client alone lacks
logs          log lines, as text or JSON
masking       secrets out of URLs and texts
"""
