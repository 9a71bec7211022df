# SPDX-License-Identifier: BSD-3-Clause
"""A discrete-event simulation of a run on many hosts: rendezvous, groups that connect, the loss of a rank, restart, and the
all-reduce of a step. Times are in seconds, sizes in bytes."""
import dataclasses
import heapq
import math


@dataclasses.dataclass
class Costs:
    """What one thing costs. benchmarks/run_scale.py measures them; docs/scaling.md says where the defaults are from."""
    message: float = 60e-6  # a message between hosts, however small (alpha)
    wire: float = 1.06  # bytes on the link for each byte of a tensor (with rate: beta)
    stream: float = 0.7e-9  # a byte of one connection, however fast the link
    host_byte: float = 0.3e-9  # a byte that ranks of a host reduce or gather (gamma)
    accept: float = 100e-6  # rank 0's store: a connection
    request: float = 20e-6  # and a request
    store_byte: float = 1e-9  # and a byte of an answer
    round_trip: float = 100e-6  # between two hosts
    notify: float = 20e-6  # the coordinator of the launchers: a message to one node
    start: float = 0.02  # a launcher stops and starts the processes of its node
    silence: float = 15.0  # after which a silent node is lost

    def link_seconds(self, size, rate, connections=1):
        return max(size * 8 * self.wire / rate, size * self.stream / connections)


class Simulation:
    """Calls functions in the order of their times."""

    def __init__(self):
        self.now = 0.0
        self.events = 0
        self._queue = []

    def at(self, time, action):
        heapq.heappush(self._queue, (time, len(self._queue) + self.events, action))

    def run(self):
        while self._queue:
            self.now, _, action = heapq.heappop(self._queue)
            self.events += 1
            action()
        return self.now


class Server:
    """Serves one thing at a time, in the order of arrival."""

    def __init__(self, simulation):
        self.simulation = simulation
        self.free_at = 0.0
        self.served = 0

    def serve(self, seconds, done):
        self.free_at = max(self.free_at, self.simulation.now) + seconds
        self.served += 1
        self.simulation.at(self.free_at, done)


def rendezvous(ranks, costs, spread=0.0):
    """(seconds until the last rank knows all hosts, requests): ranks start evenly within `spread` seconds. Each connects, asks
    whether the store's run is ending, writes its host, counts itself, waits for the last one and reads the line of hosts."""
    simulation = Simulation()
    store = Server(simulation)
    half = costs.round_trip / 2
    waiting = []
    arrived = 0

    def later(seconds, action):
        simulation.at(simulation.now + seconds, action)

    def ask(steps, then):
        if not steps:
            return then()
        later(half, lambda: store.serve(steps[0], lambda: later(half, lambda: ask(steps[1:], then))))

    def read_hosts():
        ask([costs.request + costs.store_byte * 8], lambda: None)

    def counted():
        nonlocal arrived
        arrived += 1
        if arrived < ranks:
            waiting.append(read_hosts)
            return
        # The last one checks all, reads all, and writes the line, which answers the others' requests.
        many = costs.request + costs.store_byte * 60 * ranks
        ask([many, many, costs.request], release)

    def release():
        for action in [*waiting, read_hosts]:
            store.serve(costs.request, lambda action=action: later(half, action))

    for rank in range(ranks):
        simulation.at(spread * rank / ranks, lambda: ask([costs.accept, *[costs.request] * 3], counted))
    return simulation.run(), store.served


def connect_group(hosts, costs, on_use):
    """(seconds of rank 0's store, connections of a rank) for a group of Gloo with one rank on each of `hosts`: with all pairs
    connected at once, every rank reads what every other one says to all; `on_use`, those of its two neighbours."""
    simulation = Simulation()
    store = Server(simulation)
    address = 150
    for _ in range(hosts):
        store.serve(costs.request, lambda: None)
        if on_use:
            store.serve(2 * (costs.request + costs.store_byte * address), lambda: None)
        else:
            size = hosts * (address + 8 * hosts)
            store.serve(math.ceil(hosts / 128) * costs.request + costs.store_byte * size, lambda: None)
    return simulation.run(), min(2, hosts - 1) if on_use else hosts - 1


def lose_rank(nodes, costs, silently=False):
    """Seconds until every node's launcher knows that a rank died; `silently`: that a host has lost its power."""
    simulation = Simulation()
    coordinator = Server(simulation)
    half = costs.round_trip / 2

    def tell_all():
        for _ in range(nodes):
            coordinator.serve(costs.notify, lambda: simulation.at(simulation.now + half, lambda: None))

    simulation.at((costs.silence if silently else 0) + half, tell_all)
    return simulation.run()


def restart(nodes, ranks_per_node, costs):
    """Seconds from the death of a rank until the ranks know each other again: all nodes learn of it, stop and start their
    processes, report that to the coordinator, and the ranks meet."""
    simulation = Simulation()
    coordinator = Server(simulation)
    half = costs.round_trip / 2
    ready = 0

    def joined():
        nonlocal ready
        ready += 1
        if ready == nodes:
            for _ in range(nodes):
                coordinator.serve(costs.notify, lambda: None)

    def stopped():
        simulation.at(simulation.now + costs.start + half, lambda: coordinator.serve(costs.notify, joined))

    def tell_all():
        for _ in range(nodes):
            coordinator.serve(costs.notify, lambda: simulation.at(simulation.now + half, stopped))

    simulation.at(half, tell_all)
    started = simulation.run()
    return started + rendezvous(nodes * ranks_per_node, costs)[0]


def ring_seconds(size, members, rate, costs, connections=1, slow=1.0):
    """Gloo's all-reduce of `size` bytes in a ring, whose links carry `rate` bits a second: 2 (members - 1) steps, in each of
    which every member sends a part to the next one over `connections`. A member with a `slow` times slower link holds up the others."""
    if members == 1 or size == 0:
        return 0.0
    step = costs.message + costs.link_seconds(size / members, rate / slow, connections)
    return 2 * (members - 1) * step


def tree_seconds(size, members, rate, costs):
    """A binomial tree up and down: every level carries the whole tensor."""
    return 2 * math.ceil(math.log2(members)) * (costs.message + costs.link_seconds(size, rate))


# As in src/communication/backends/hierarchical/host_layout.h.
SMALL = 32 << 10


def chunk_bytes(hosts):
    return max(8 << 20, hosts << 20)


def hierarchical_seconds(size, hosts, local, rate, costs, chunk=None):
    """The all-reduce of `hierarchical`: chunks pass through the host's reduction, the network and the gathering. Host and
    network work at the same time, on different chunks. The lanes of a host share its link."""
    on_host = costs.host_byte if local > 1 else 0.0
    if size <= SMALL:
        return ring_seconds(size, hosts, rate, costs) + size * on_host
    simulation = Simulation()
    ranks = Server(simulation)  # each host does the same
    network = Server(simulation)
    chunk = chunk or chunk_bytes(hosts)
    sizes = [min(chunk, size - begin) for begin in range(0, size, chunk)]
    # After many equal chunks each further one takes as long as the one before it.
    simulated = sizes if len(sizes) <= 200 else sizes[:200]

    def reduce(index):
        if index == len(simulated):
            return
        half = simulated[index] * on_host / 2
        ranks.serve(half, lambda: send(index))

    def send(index):
        network.serve(ring_seconds(simulated[index], hosts, rate, costs, local),
                      lambda: ranks.serve(simulated[index] * on_host / 2, lambda: None))
        # A rank gathers a chunk before it reduces the one after the next.
        reduce(index + 1)

    simulation.at(0.0, lambda: reduce(0))
    seconds = simulation.run()
    return seconds * len(sizes) / len(simulated)
