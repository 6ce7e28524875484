"""What has to be done from time to time, without anyone asking for it.

reaper         ends attempts whose lease has expired: requeue or dead letter
janitor        deletes jobs, tickets and result files that are past their time
incarnations   the names under which earlier runs on this data directory held leases
"""
