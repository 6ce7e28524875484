-- Who has changed a ticket while it was NEW: with tickets.four_eyes they count as authors.
ALTER TABLE jobd.tickets ADD COLUMN edited_by text[] NOT NULL DEFAULT '{}';
