"""Files that clients send, or that are made for them: a row for each, and its bytes in the data directory.

storage   the bytes: written once, whole or not there at all
table     the rows: who owns a file, what it is for, until when it stays
"""
