-- Moves a sequence forward to the given number; the next one handed out is the one after it.
SELECT setval(%(sequence)s::text::regclass, %(highest)s::bigint, true)
