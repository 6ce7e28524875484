-- When a consumer that is not jobd's was last seen in the group of the queue's stream. Such a worker cannot claim, so in a
-- queue that it reads every job is taken through its message and never by a poll of this table; see open_queues in take.sql.
ALTER TABLE jobd.queues ADD COLUMN raw_seen_at timestamptz;
