import re, time
import pytest
from tests.test_admin_scale import *
from tests.admin_pages import *
def test_probe(many_runs):
    c = person(*EVERYTHING)
    assert sequential_scans("SELECT count(*) FROM tenantfair_run WHERE task_path='x'")
    for name,url in LISTS.items():
        t=time.perf_counter(); r,st=ask(c,url); dt=(time.perf_counter()-t)*1000
        html=r.content.decode()
        m=re.search(r"(\d[\d,]*) (?:runs|partitions|run|partition)\b", html[html.find('class="paginator"'):]) if 'paginator' in html else None
        print(f"{name:40s} {len(st):3d} q {dt:7.0f} ms rows={html.count('action-select')} total={m and m.group(1)}")
    for url in (runs_url("?state=queued"), runs_url("?state=failed&scope=noisy"), runs_url("?scope=noisy")):
        r,st=ask(c,url)
        for s in st:
            if "tenantfair_run" in s:
                print(s[:1500]); 
                with connection.cursor() as cur:
                    cur.execute("EXPLAIN ANALYZE "+s.replace("%","%%"),[]); print("\n".join(x[0] for x in cur.fetchall())[:1500])
