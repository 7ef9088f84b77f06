-- Every import's run: whose it was, and whether it did what it should.
SELECT
    statement.run_id,
    customer.slug,
    run.status = 'completed' AND statement.transaction_count > 0
FROM statements_import AS statement
JOIN statements_customer AS customer ON customer.id = statement.customer_id
JOIN tenantfair_run AS run ON run.run_id = statement.run_id
