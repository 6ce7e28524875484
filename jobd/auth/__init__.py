"""Who may call: tokens, their scopes, and the audit log.

token           the format of a token
table           tokens and audit log in Postgres (table.sql)
doorkeeper      authenticates each request from memory
watch           the service that polls the table for the doorkeeper
"""
