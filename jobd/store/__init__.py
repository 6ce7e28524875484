"""Postgres: the connection pool, statements, migrations, and the clock that all nodes share.

session      what a verb needs of Postgres, as a type     postgres     Database: pool, retries, checks of the server
faults       asyncpg's errors as jobd's own               statements   .sql files, by name
ids          UUIDs of jobs, attempts and tokens           migrate      numbered migrations
clock_eras   which time can be believed, pure             clock        watches Postgres' clock and writes the eras
leader       one node at a time does a job
"""
