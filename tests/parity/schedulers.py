# SPDX-License-Identifier: BSD-3-Clause
"""Python's schedulers with drawn arguments: schedulers.py draw <out.pt> | continue <out.pt> <halves.pt>

draw:     writes the cases and, for each, what every step leaves in the optimizer, the states after half the steps and at
          the end, and the step at which it fails (-1: the constructor).
continue: continues from the states after half the steps, which C++ wrote, and compares with its own run.
"""
import copy
import random
import sys
import warnings

import torch
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

COUNT, STEPS = 300, 24
OPTIMIZERS = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.5),
    "Adam": lambda groups: torch.optim.Adam(groups, lr=0.1),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.1),
    "RMSprop": lambda groups: torch.optim.RMSprop(groups, lr=0.1, momentum=0.5),
    "Adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.1),
    "NAdam": lambda groups: torch.optim.NAdam(groups, lr=0.1),
    "Muon": lambda groups: torch.optim.Muon(groups, lr=0.1),
}
LAMBDAS = {"power": lambda p: lambda epoch: p**epoch, "inverse": lambda p: lambda epoch: 1 / (1 + p * epoch)}


class Draw:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.optimizer = self.random.choice(list(OPTIMIZERS))
        self.groups = self.random.randint(1, 3)

    def number(self, low, high):
        return self.random.uniform(low, high)

    def whole(self, low, high):
        return self.random.randint(low, high)

    def per_group(self, low, high):
        """A number for all groups or one for each."""
        if self.random.random() < 0.5:
            return self.number(low, high)
        return [self.number(low, high) for _ in range(self.groups)]

    def arguments(self, names):
        """Some of the arguments: the others keep their defaults."""
        return {name: draw() for name, draw in names.items() if self.random.random() < 0.7}

    def lambdas(self):
        count = self.random.choice([1, self.groups])
        return {"lr_lambda": [[self.random.choice(list(LAMBDAS)), self.number(0.5, 1.05)] for _ in range(count)]}

    def step_lr(self):
        return {"step_size": self.whole(1, 9), **self.arguments({"gamma": lambda: self.number(0.1, 1.5)})}

    def multi_step_lr(self):
        milestones = sorted(self.whole(1, STEPS) for _ in range(self.whole(1, 6)))
        return {"milestones": milestones, **self.arguments({"gamma": lambda: self.number(0.1, 1.5)})}

    def constant_lr(self):
        return self.arguments({"factor": lambda: self.random.choice([self.number(0, 1), 0.0]), "total_iters": lambda: self.whole(0, 15)})

    def linear_lr(self):
        ends = {"start_factor": lambda: self.number(0.01, 1), "end_factor": lambda: self.number(0, 1)}
        return self.arguments({**ends, "total_iters": lambda: self.whole(0, 20)})

    def exponential_lr(self):
        return {"gamma": self.number(0.5, 1.1)}

    def polynomial_lr(self):
        return self.arguments({"total_iters": lambda: self.whole(1, 30), "power": lambda: self.number(0.1, 3)})

    def cosine(self):
        return {"T_max": self.whole(1, 20), **self.arguments({"eta_min": lambda: self.number(0, 0.01)})}

    def warm_restarts(self):
        return {"T_0": self.whole(1, 9), **self.arguments({"T_mult": lambda: self.whole(1, 3), "eta_min": lambda: self.number(0, 0.01)})}

    def momentum(self):
        if self.optimizer == "Adagrad":
            return {"cycle_momentum": False}
        bounds = {"base_momentum": lambda: self.per_group(0.5, 0.8), "max_momentum": lambda: self.per_group(0.8, 0.99)}
        return self.arguments({"cycle_momentum": lambda: self.random.random() < 0.7, **bounds})

    def cyclic(self):
        shape = {
            "step_size_down": lambda: self.whole(1, 9),
            "mode": lambda: self.random.choice(["triangular", "triangular2", "exp_range"]),
            "gamma": lambda: self.number(0.8, 1),
            "scale_fn": lambda: [self.random.choice(list(LAMBDAS)), self.number(0.5, 1)],
            "scale_mode": lambda: self.random.choice(["cycle", "iterations"]),
        }
        bounds = {"base_lr": self.per_group(0.001, 0.1), "max_lr": self.per_group(0.1, 1)}
        return {**bounds, "step_size_up": self.whole(1, 9), **self.arguments(shape), **self.momentum()}

    def one_cycle(self):
        if self.random.random() < 0.5:
            length = {"total_steps": self.whole(STEPS - 4, 40)}  # some end too early
        else:
            length = {"epochs": self.whole(5, 9), "steps_per_epoch": self.whole(5, 9)}
        shape = {
            "pct_start": lambda: self.number(0.05, 0.5),
            "anneal_strategy": lambda: self.random.choice(["cos", "linear"]),
            "div_factor": lambda: self.number(2, 30),
            "final_div_factor": lambda: self.number(10, 1e4),
            "three_phase": lambda: self.random.random() < 0.5,
        }
        return {"max_lr": self.per_group(0.1, 1), **length, **self.arguments(shape), **self.momentum()}

    def swa(self):
        anneal = {"anneal_epochs": lambda: self.whole(0, 12), "anneal_strategy": lambda: self.random.choice(["cos", "linear"])}
        return {"swa_lr": self.per_group(0.001, 0.2), **self.arguments(anneal)}

    def simple(self):
        kinds = {
            "LambdaLR": self.lambdas, "MultiplicativeLR": self.lambdas, "StepLR": self.step_lr, "MultiStepLR": self.multi_step_lr,
            "ConstantLR": self.constant_lr, "LinearLR": self.linear_lr, "ExponentialLR": self.exponential_lr,
            "PolynomialLR": self.polynomial_lr, "CosineAnnealingLR": self.cosine, "CosineAnnealingWarmRestarts": self.warm_restarts,
            "CyclicLR": self.cyclic, "OneCycleLR": self.one_cycle, "SWALR": self.swa,
        }  # fmt: skip
        kind = self.random.choice(list(kinds))
        return {"kind": kind, "arguments": kinds[kind]()}

    def scheduler(self, depth=0):
        what = self.random.random()
        if what > 0.4 or depth > 1:
            return self.simple()
        parts = [self.scheduler(depth + 1)] + [self.simple() for _ in range(self.whole(0, 2))]
        if what < 0.15:
            return {"kind": "ChainedScheduler", "schedulers": parts, "arguments": {}}
        milestones = sorted(self.whole(1, STEPS) for _ in parts[1:])
        return {"kind": "SequentialLR", "schedulers": parts, "arguments": {"milestones": milestones}}

    def case(self):
        change = lambda: [self.number(0.01, 1) for _ in range(self.groups)]
        changes = {self.whole(0, STEPS): change() for _ in range(self.random.choice([0, 0, 2]))}
        schedulers = [self.scheduler() for _ in range(self.random.choice([1, 1, 1, 2]))]
        return {"optimizer": self.optimizer, "rates": change(), "changes": changes, "schedulers": schedulers}


def make_scheduler(optimizer, spec):
    arguments = dict(spec["arguments"])
    if "lr_lambda" in arguments:
        functions = [LAMBDAS[kind](p) for kind, p in arguments["lr_lambda"]]
        arguments["lr_lambda"] = functions if len(functions) > 1 else functions[0]
    if "scale_fn" in arguments:
        kind, p = arguments["scale_fn"]
        arguments["scale_fn"] = LAMBDAS[kind](p)
    if spec["kind"] == "SWALR":
        return SWALR(optimizer, **arguments)
    parts = [make_scheduler(optimizer, part) for part in spec.get("schedulers", [])]
    if spec["kind"] == "ChainedScheduler":
        return lr_scheduler.ChainedScheduler(parts, optimizer)
    if spec["kind"] == "SequentialLR":
        return lr_scheduler.SequentialLR(optimizer, parts, **arguments)
    return getattr(lr_scheduler, spec["kind"])(optimizer, **arguments)


class Run:
    def __init__(self, case):
        self.case, self.schedulers, self.failed_at = case, [], None
        groups = [{"params": [torch.nn.Parameter(torch.zeros(1, 1))], "lr": rate} for rate in case["rates"]]
        self.optimizer = OPTIMIZERS[case["optimizer"]](groups)
        try:
            for spec in case["schedulers"]:
                self.schedulers.append(make_scheduler(self.optimizer, spec))
        except (ValueError, ZeroDivisionError):
            self.failed_at = -1

    def steps(self, first, last):
        """What each step leaves: rates, what get_last_lr() returns, and momenta."""
        steps = []
        for step in range(first, last):
            if self.failed_at is not None:
                break
            for group, rate in zip(self.optimizer.param_groups, self.case["changes"].get(step, [])):
                group["lr"] = rate
            try:
                for scheduler in self.schedulers:
                    scheduler.step()
            except (ValueError, ZeroDivisionError):
                self.failed_at = step
                break
            groups = self.optimizer.param_groups
            momenta = [group["betas"][0] if "betas" in group else group.get("momentum", 0.0) for group in groups]
            steps.append([[group["lr"] for group in groups], [list(s.get_last_lr()) for s in self.schedulers], momenta])
        return steps

    def state(self):
        return {"optimizer": self.optimizer.state_dict(), "schedulers": [s.state_dict() for s in self.schedulers]}

    def load(self, state):
        self.optimizer.load_state_dict(state["optimizer"])
        for scheduler, saved in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)


def draw(out):
    cases = []
    for seed in range(COUNT):
        case = Draw(seed).case()
        run = Run(case)
        first = run.steps(0, STEPS // 2)
        half = copy.deepcopy(run.state())
        rest = run.steps(STEPS // 2, STEPS)
        cases.append({**case, "steps": first + rest, "half": half, "end": run.state(), "failed_at": run.failed_at})
    torch.save(cases, out)


def carry_on(out, halves):
    cases, halves = torch.load(out, weights_only=True), torch.load(halves, weights_only=True)
    for seed, (case, half) in enumerate(zip(cases, halves, strict=True)):
        if half is None:
            continue
        run = Run(case)
        run.load(half)
        steps = run.steps(STEPS // 2, STEPS)
        assert steps == case["steps"][STEPS // 2 :], (seed, case, steps)
        assert run.state()["schedulers"] == case["end"]["schedulers"], (seed, case, run.state())


warnings.simplefilter("ignore")
{"draw": draw, "continue": carry_on}[sys.argv[1]](*sys.argv[2:])
