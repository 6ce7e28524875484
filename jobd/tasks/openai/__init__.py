"""`run = "openai"`: a call of an OpenAI-compatible server.

runner      sends the request and reads the stream
payload     the payload of a job as a request
answer      chunks joined to an answer
failures    what went wrong, as the error of an attempt
"""
