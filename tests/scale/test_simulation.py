# SPDX-License-Identifier: BSD-3-Clause
"""Tests of benchmarks/scale_simulation.py: what is known without simulating."""
import math
import pathlib
import sys
import unittest

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import run_scale  # noqa: E402
import scale_plot  # noqa: E402
import scale_simulation as sim  # noqa: E402

COSTS = sim.Costs(message=1e-3, wire=1.0, stream=0.0, host_byte=1e-9, accept=1e-3, request=1e-4, store_byte=0.0, round_trip=0.0, notify=1e-3,
                  start=0.5, silence=10.0)


class Events(unittest.TestCase):
    def test_run_in_the_order_of_their_times(self):
        simulation, seen = sim.Simulation(), []
        for time in (3, 1, 2):
            simulation.at(time, lambda time=time: seen.append((time, simulation.now)))
        simulation.at(1, lambda: simulation.at(1.5, lambda: seen.append((1.5, simulation.now))))
        self.assertEqual(simulation.run(), 3)
        self.assertEqual(seen, [(1, 1), (1.5, 1.5), (2, 2), (3, 3)])

    def test_a_server_serves_one_at_a_time(self):
        simulation, ends = sim.Simulation(), []
        server = sim.Server(simulation)
        for time in (0, 1, 10):
            simulation.at(time, lambda: server.serve(2, lambda: ends.append(simulation.now)))
        simulation.run()
        self.assertEqual(ends, [2, 4, 12])


class Rendezvous(unittest.TestCase):
    def test_needs_a_connection_and_five_requests_of_each_rank(self):
        for ranks in (16, 10_000):
            seconds, served = sim.rendezvous(ranks, COSTS)
            # Connection, three requests, the wait and the line; the last rank has three more.
            self.assertEqual(served, 6 * ranks + 3)
            self.assertAlmostEqual(seconds, ranks * (1e-3 + 5e-4) + 3e-4)

    def test_waits_for_the_last_rank(self):
        self.assertGreater(sim.rendezvous(16, COSTS, spread=60.0)[0], 60 * 15 / 16)

    def test_all_pairs_cost_quadratically(self):
        many, few = (sim.connect_group(hosts, sim.Costs(), False)[0] for hosts in (4096, 1024))
        self.assertGreater(many / few, 15)
        many, few = (sim.connect_group(hosts, sim.Costs(), True)[0] for hosts in (4096, 1024))
        self.assertAlmostEqual(many / few, 4)
        self.assertEqual(sim.connect_group(1000, COSTS, True)[1], 2)
        self.assertEqual(sim.connect_group(1000, COSTS, False)[1], 999)


class Losses(unittest.TestCase):
    def test_all_nodes_learn_of_it_one_after_another(self):
        self.assertAlmostEqual(sim.lose_rank(1250, COSTS), 1.25)
        self.assertAlmostEqual(sim.lose_rank(1250, COSTS, silently=True), 11.25)

    def test_restart_stops_starts_and_meets(self):
        meeting = sim.rendezvous(80, COSTS)[0]
        # All nodes learn of it, the last one restarts, all report.
        seconds = sim.restart(10, 8, COSTS) - meeting
        self.assertGreaterEqual(seconds, 0.5 + 10e-3 + 10e-3)
        self.assertLess(seconds, 0.5 + 31e-3)


class AllReduce(unittest.TestCase):
    def test_a_ring_takes_the_time_of_its_steps(self):
        self.assertAlmostEqual(sim.ring_seconds(1e6, 4, 1e9, COSTS), 6 * (1e-3 + 2e-3))
        self.assertEqual(sim.ring_seconds(1e6, 1, 1e9, COSTS), 0)

    def test_one_connection_is_slower_than_a_fast_link(self):
        costs = sim.Costs(message=0.0, wire=1.0, stream=1e-9)
        self.assertAlmostEqual(sim.ring_seconds(1e6, 2, 100e9, costs), 1e-3)
        self.assertAlmostEqual(sim.ring_seconds(1e6, 2, 100e9, costs, connections=8), 1e-3 / 8)

    def test_a_tree_carries_all_in_every_level(self):
        self.assertAlmostEqual(sim.tree_seconds(1e6, 8, 1e9, COSTS), 6 * (1e-3 + 8e-3))

    def test_one_chunk_passes_through_host_network_and_host(self):
        size = 1 << 20
        expected = size * 1e-9 + sim.ring_seconds(size, 4, 1e9, COSTS)
        self.assertAlmostEqual(sim.hierarchical_seconds(size, 4, 2, 1e9, COSTS), expected)

    def test_chunks_overlap(self):
        size, chunk = 10 * sim.chunk_bytes(4), sim.chunk_bytes(4)
        network = 10 * sim.ring_seconds(chunk, 4, 1e9, COSTS)
        # The network is the limit: only the first reduction and the last gathering add to its time.
        self.assertAlmostEqual(sim.hierarchical_seconds(size, 4, 2, 1e9, COSTS), network + chunk * 1e-9)
        hosts_only = sim.Costs(message=0, wire=0, stream=0, host_byte=1e-9)
        self.assertAlmostEqual(sim.hierarchical_seconds(size, 4, 2, 1e9, hosts_only), size * 1e-9)

    def test_a_large_tensor_takes_as_many_chunks(self):
        one, ten = (sim.hierarchical_seconds(size, 4, 2, 1e9, COSTS) for size in (400 * sim.chunk_bytes(4), 4000 * sim.chunk_bytes(4)))
        self.assertAlmostEqual(ten / one, 10, places=2)

    def test_chunks_that_grow_with_the_hosts_need_fewer_messages(self):
        fixed, growing = (sim.hierarchical_seconds(28_000_000_000, 1250, 8, 25e9, sim.Costs(), chunk) for chunk in (4 << 20, None))
        self.assertLess(growing, fixed / 10)

    def test_a_slow_link_holds_up_all(self):
        self.assertGreater(sim.ring_seconds(1e9, 100, 1e9, COSTS, slow=10.0), 9 * sim.ring_seconds(1e9, 100, 1e9, COSTS))


class Fit(unittest.TestCase):
    def test_finds_the_costs_of_simulated_runs(self):
        truth = sim.Costs(message=2e-4, wire=1.1, host_byte=2e-9)
        runs = [{"hosts": hosts, "local": 2, "rate": rate, "bytes": size,
                 "seconds": sim.hierarchical_seconds(size, hosts, 2, rate, truth)}
                for hosts, rate in ((2, 1e9), (4, 2e8)) for size in (1024, 1 << 18, 1 << 20, 16 << 20)]
        found = run_scale.fitted(runs)
        self.assertLess(abs(found.message / truth.message - 1), 0.02)
        self.assertLess(abs(found.wire / truth.wire - 1), 0.02)
        for run in runs:
            self.assertLess(abs(run_scale.predicted(run, found) / run["seconds"] - 1), 0.02)


class Plot(unittest.TestCase):
    def test_is_a_small_picture_with_all_curves(self):
        curves = {name: [(hosts, hosts / 10) for hosts in (2, 32, 1250)] for name in ("ring", "tree")}
        picture = scale_plot.svg([("left", curves), ("right", curves)], "a title")
        self.assertEqual(picture.count("<polyline"), 4)
        self.assertLess(len(picture), 20_000)
        self.assertFalse(any(math.isnan(value) for value in scale_plot.bounds(curves)))


if __name__ == "__main__":
    unittest.main()
