"""What `jobd chaos` runs: a drill that breaks a jobd under load, and then proves what became of every job.

records         what was sent, what was run, what the tables say in the end: a history
check           the promises as rules over a history; what breaks one is a finding
handlers        the tasks of the drill; each run is written to a file that no fault touches
load            clients that send every kind of job all the time, whatever happens
read            the tables and that file, as a history
board           the `jobd serve` under test: start it, kill it, wait until it is ready
disk            a file system of its own, to be filled up or cut off as by a power failure
faults          what is done to a board in one round
drill           the rounds, one after the other
report          what was tried and what came of it
"""
