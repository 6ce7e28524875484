"""What has to be done from time to time, without anyone asking for it.

reaper         ends attempts whose lease has expired: requeue or dead letter
resolver       lets jobs go whose dependencies have ended, and moves the counters of groups
janitor        deletes jobs, tickets and result files that are past their time
files          its part for files of clients and batches
rollups        adds to the minute rollups what commits have left for them
incarnations   the names under which earlier runs on this data directory held leases
"""
