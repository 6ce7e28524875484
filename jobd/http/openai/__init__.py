"""The routes of the OpenAI interface, one module for each resource; shapes and translation are in `jobd.openai`.

calls           a call as a job: body, headers, the job of an earlier try
readers         who reads which answer, and the end of jobs that nobody reads
ended           what the job of a call ended with
whole_call      answers in one piece
delta_stream,
streamed_call   answers as a stream
models          /v1/models
chat            /v1/chat/completions
completions     /v1/completions
embeddings      /v1/embeddings
upload          a multipart form with one file, read as it arrives
files           /v1/files
batches         /v1/batches
responses       /v1/responses
response_reading    the job of a response, and what its history says
response_answer     its answers that take as long as the job does
"""
