"""The OpenAI interface without I/O: shapes, routing by model, and translation to and from jobs.

models              which task answers a model, under which name, in which queue
model_list          models as OpenAI lists them
errors              OpenAI's error object; problems and errors of jobs as one
fields              checks of the fields of a body, one by one
envelope            what a job's payload says about the call that it came from
chat_request        the body of a chat call as the payload of a job
completion_request  likewise of /v1/completions
embedding_request   likewise of /v1/embeddings
answer              the result of a job as text, thoughts, tool calls and usage
deltas              events and result of a job as a stream of deltas
chat_answer         answer and deltas as objects of a chat
completion_answer   likewise of /v1/completions
embedding_answer    likewise of /v1/embeddings
file_objects        files as clients see them
batch_objects       batches as clients see them
batch_lines         lines of a batch: what each asks for, and its answer
responses_request   the body of /v1/responses as the payload of a job
responses_items     its items as messages of a chat, and back
responses_output    deltas as output items and their events
responses_stream    the history of a job as a response: numbered events, and the object
"""
