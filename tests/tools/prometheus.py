#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Debian's Prometheus scrapes a run: prometheus.py <folder with the programs> <docs/metrics>. promtool accepts the metrics and the
rules, Prometheus stores the scrape, and evaluates every expression of the rules and of the dashboard."""
import contextlib
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

TOKEN = "0123456789abcdef"
LIMIT = 60
SCENARIO = "metrics: makes steps until it is stopped"


@contextlib.contextmanager
def running(*command, **options):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def get(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=LIMIT) as answer:
        return answer.read().decode()


def wait_until(what, is_true):
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if result := is_true():
                return result
        time.sleep(0.2)
    sys.exit(f"{what} did not come in {LIMIT} s")


def expressions(folder):
    """Those of the dashboard, with values for its variables."""
    text = (folder / "dashboard.json").read_text()
    for name, value in {"$run": ".*", "$host": ".*", "$__rate_interval": "1m"}.items():
        text = text.replace(name, value)
    return [target["expr"] for panel in json.loads(text)["panels"] for target in panel["targets"]]


def configuration(folder, address, rules):
    (folder / "token").write_text(TOKEN)
    file = folder / "prometheus.yml"
    file.write_text(json.dumps({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules.resolve())],
        "scrape_configs": [{"job_name": "lockstep", "authorization": {"credentials_file": str(folder / "token")},
                            "static_configs": [{"targets": [address]}]}]}))
    return file


def check_scrapes(server, metrics):
    def query(expression):
        answer = json.loads(get(f"{server}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"))
        assert answer["status"] == "success", answer
        return answer["data"]["result"]

    wait_until("a scrape", lambda: query("lockstep_steps_total > 0"))
    wait_until("a second scrape", lambda: query("rate(lockstep_steps_total[1m]) > 0"))
    empty = [expression for expression in expressions(metrics) if not query(expression)]
    # The scenario has no loader and no sharded parameters.
    assert all("epoch" in expression or "resident" in expression for expression in empty), empty
    groups = wait_until("the rules", lambda: json.loads(get(f"{server}/api/v1/rules"))["data"]["groups"])
    rules = wait_until("an evaluation", lambda: [rule for group in json.loads(get(f"{server}/api/v1/rules"))["data"]["groups"]
                                                 for rule in group["rules"] if rule["health"] != "unknown"])
    assert groups and all(rule["health"] == "ok" and rule["state"] == "inactive" for rule in rules), rules


def main(programs, metrics):
    subprocess.run(["promtool", "check", "rules", metrics / "alerts.yml"], check=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "token").write_text(TOKEN)
        run = [programs / "lockstep", "run", "--nproc-per-node", "2", "--metrics-port", "0", "--metrics-token-file", folder / "token",
               "--", programs / "tools_observe"]
        with running(*run, env=os.environ | {"LOCKSTEP_TEST_SCENARIO": SCENARIO}) as launcher:
            address = re.search(r"http://(\S+)/metrics", launcher.stdout.readline())[1]
            text = wait_until("a rank", lambda: (lambda text: text if "lockstep_reported{" in text else "")(
                get(f"http://{address}/metrics", Authorization=f"Bearer {TOKEN}")))
            subprocess.run(["promtool", "check", "metrics"], input=text, text=True, check=True)
            port = free_port()
            file = configuration(folder, address, metrics / "alerts.yml")
            with running("prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}",
                         f"--web.listen-address=127.0.0.1:{port}"):
                check_scrapes(f"http://127.0.0.1:{port}", metrics)
    print("Prometheus reads the metrics of a run")


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
