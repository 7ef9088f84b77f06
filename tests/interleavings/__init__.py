"""Sessions stepped through the real SQL, statement by statement, in every order.

`gates` puts stops into the installed functions, `actors` are the sessions, `stage` moves one of them at a
time, `explore` walks all orders, `specs` say which operations meet and what may come of it.
"""
