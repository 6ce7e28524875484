"""The rules of a job's life, as functions of what is known: nothing here waits, asks the time, or touches a server."""
