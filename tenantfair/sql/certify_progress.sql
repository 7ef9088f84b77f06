-- How much has been recorded, and lost; null once the recording is gone.
SELECT
    (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM tenantfair_certify_rows) AS rows,
    (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM tenantfair_certify_calls) AS calls,
    (SELECT is_called FROM tenantfair_certify_lost) AS lost
