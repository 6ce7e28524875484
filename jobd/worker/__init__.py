"""`jobd worker`: the slots and runners of this machine, for a jobd elsewhere that is called over HTTP.

worker          the tree of services of one run, and its signals
session         calls to jobd: errors, what is retried
pace            when the next call may be sent: backoff and `Retry-After`
claims          jobs for waiting slots, by long poll
engine          renewals, events and reports, with the methods of `jobd.engine.engine` that slots use
reports         reports by the batch, which gather while a call is under way
renewal_line    renewals by a thread of its own while the event loop is blocked
folder          a place on this machine's disk
"""
