"""Gives queued jobs to those who wait for them, and runs jobs in slots.

waiting_line   those who wait for a job, in order
dispatcher     reads messages and claims their jobs for those who wait
slots          runs claimed jobs and reports how they ended
"""
