"""Which instants a cron expression or an interval names, PURE: no clock, no I/O but the database of time zones.

timing      the Struct, and what is wrong with one
walk        the occurrences after or before an instant
cron        the instants of a cron expression in a time zone, over changes of the clock by daylight saving
"""
