SELECT EXISTS (SELECT FROM tenantfair_run WHERE finished_at IS NULL)
