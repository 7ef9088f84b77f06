-- Wait until all that has been committed so far is on disk, as this session's synchronous_commit has it: a
-- commit writes the log before it, and those of several sessions share one write. A message that nobody
-- reads, because a commit of nothing waits for nothing.

SELECT pg_logical_emit_message(true, 'tenantfair', '')
