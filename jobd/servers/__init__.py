"""The servers that jobd stands on: Postgres and Valkey, embedded or given by URL.

program       starts, watches and stops a server program
postgres      the embedded Postgres (settings in postgres.conf)
valkey        the embedded Valkey
connections   services that keep the connections to both, check the servers, and migrate
"""
