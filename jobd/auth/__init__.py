"""Who may call: tokens, their scopes, and the audit log.

token           the format of a token
table           tokens and audit log in Postgres (table.sql)
sessions        logins of browsers in Postgres (sessions.sql)
open_sessions   those that this node has seen, in memory
doorkeeper      authenticates each request from memory
watch           the service that polls the tables for the doorkeeper
"""
