-- How many runs are over: the noisy customer's, and those of all the others.
SELECT
    count(*) FILTER (WHERE customer.slug = 'noisy'),
    count(*) FILTER (WHERE customer.slug <> 'noisy')
FROM statements_import AS statement
JOIN statements_customer AS customer ON customer.id = statement.customer_id
JOIN tenantfair_run AS run ON run.run_id = statement.run_id
WHERE run.finished_at IS NOT NULL
