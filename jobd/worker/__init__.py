"""What `jobd worker` is made of: the slots and runners of this machine, and a jobd elsewhere that is called over HTTP.

session, pace   one line to jobd: calls, errors, pauses
claims          jobs, for slots that wait for them
engine          renewals, events and reports, with the methods of `jobd.engine.engine` that slots use
guard           renewals while the event loop is blocked
folder          a place on this machine's disk
worker          all of it together, and the signals
"""
