# SPDX-License-Identifier: BSD-3-Clause
"""Python's optimizers with the options that C++ gets: optimizers.py first|second <folder>

first:  writes cases.pt: gradients, and for each case its options and parameters, the parameters after every step, the
        state dict in the middle and at the end, and the parameters at the end after it continued from the middle.
second: continues from halves.pt, which the other side wrote, and compares.
"""
import copy
import importlib
import importlib.util
import os
import sys
import types
import warnings

import torch

HALF, WHOLE = 10, 20
SHAPES = [(6, 4), (3, 5), (5,), (2, 4, 3)]
PAIR = (0.8, 0.95)
# Options of the optimizer, and those of its second group.
CASES = [
    ("NAdam", {}, {}),
    ("NAdam", {"lr": 0.02, "betas": PAIR, "eps": 1e-6, "weight_decay": 0.1, "momentum_decay": 0.01}, {"maximize": True}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}, {"lr": 0.3}),
    ("RAdam", {}, {}),
    ("RAdam", {"lr": 0.02, "betas": (0.8, 0.7), "eps": 1e-6, "weight_decay": 0.1}, {"betas": PAIR, "maximize": True}),
    ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}, {"weight_decay": 0.3}),
    ("Adamax", {}, {}),
    ("Adamax", {"lr": 0.02, "betas": PAIR, "eps": 1e-6, "weight_decay": 0.1}, {"maximize": True}),
    ("Adadelta", {}, {}),
    ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-5, "weight_decay": 0.1}, {"rho": 0.95, "maximize": True}),
    ("ASGD", {}, {}),
    ("ASGD", {"lr": 0.1, "lambd": 0.01, "alpha": 0.6, "t0": 5, "weight_decay": 0.1}, {"t0": 0.5, "maximize": True}),
    ("Rprop", {}, {}),
    ("Rprop", {"lr": 0.1, "etas": (0.4, 1.3), "step_sizes": (1e-3, 0.2)}, {"maximize": True}),
    ("SparseAdam", {}, {}),
    ("SparseAdam", {"lr": 0.1, "betas": PAIR, "eps": 1e-6}, {"maximize": True}),
    ("Adafactor", {}, {}),
    ("Adafactor", {"lr": 0.1, "beta2_decay": -0.6, "eps": (1e-5, 1e-2), "d": 1.5, "weight_decay": 0.1}, {"maximize": True}),
    ("Muon", {}, {}),
    ("Muon", {"lr": 0.1, "nesterov": False, "ns_steps": 3, "adjust_lr_fn": "match_rms_adamw"}, {"momentum": 0.5}),
    ("Muon", {"weight_decay": 0.3, "ns_coefficients": (3.0, -4.0, 2.0), "eps": 1e-3}, {"adjust_lr_fn": "original"}),
    ("Lamb", {}, {}),
    ("Lamb", {"lr": 0.1, "betas": PAIR, "eps": 1e-5, "bias_correction": False, "max_grad_norm": None}, {"weight_decay": 0.0}),
    ("Lamb", {"grad_averaging": False, "trust_clip": True, "caution": True, "max_grad_norm": 0.5}, {"lr": 0.1}),
    ("Lamb", {"lr": 0.1, "decoupled_decay": True, "corrected_weight_decay": True}, {"lr": 0.05, "weight_decay": 0.2}),
    ("Lamb", {"weight_decay": 0.0, "always_adapt": True}, {"decoupled_decay": True, "weight_decay": 0.1}),
    ("Lars", {}, {"momentum": 0.9}),
    ("Lars", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}, {"trust_clip": True}),
    ("Lars", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "trust_coeff": 0.01, "eps": 1e-6}, {"always_adapt": True}),
    ("Lion", {}, {}),
    ("Lion", {"lr": 0.01, "betas": PAIR, "weight_decay": 0.1}, {"lr": 0.02}),
    ("Lion", {"lr": 0.01, "weight_decay": 0.001, "decoupled_weight_decay": True}, {"lr": 0.03, "weight_decay": 0.002}),
]  # fmt: skip


def class_of(kind):
    if kind == "Lion":
        return importlib.import_module("lion_pytorch").Lion
    if kind in ("Lamb", "Lars"):
        # Only these modules: the whole package imports torchvision and more.
        if "timm" not in sys.modules:
            (folder,) = importlib.util.find_spec("timm").submodule_search_locations
            for name, path in [("timm", folder), ("timm.optim", os.path.join(folder, "optim"))]:
                sys.modules[name] = types.ModuleType(name)
                sys.modules[name].__path__ = [path]
        return getattr(importlib.import_module("timm.optim." + kind.lower()), kind)
    return getattr(torch.optim, kind)


def gradient(shape, dtype, sparse):
    if not sparse:
        # With zeros, and some parameters without a gradient.
        return torch.randn(shape, dtype=dtype) * (torch.rand(shape) > 0.1) if torch.rand(()) > 0.1 else None
    return [torch.randint(shape[0], (1, 3)), torch.randn(3, *shape[1:], dtype=dtype), list(shape)]


def flat(parameters):
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


class Side:
    def __init__(self, case, gradients):
        self.gradients = gradients
        parts = torch.split(case["parameters"], [torch.Size(shape).numel() for shape in case["shapes"]])
        self.parameters = [torch.nn.Parameter(part.reshape(shape).clone()) for part, shape in zip(parts, case["shapes"])]
        groups = [{"params": self.parameters[::2]}, {"params": self.parameters[1::2], **case["of_group"]}]
        self.optimizer = class_of(case["kind"])(groups, **case["options"])

    def train(self, first, last):
        """The parameters after each step."""
        steps = []
        for gradients in self.gradients[first:last]:
            for parameter, grad in zip(self.parameters, gradients):
                parameter.grad = torch.sparse_coo_tensor(*grad) if isinstance(grad, list) else copy.copy(grad)
            self.optimizer.step()
            steps.append(flat(self.parameters))
        return steps

    def load(self, parameters, state):
        torch.nn.utils.vector_to_parameters(parameters.clone(), self.parameters)
        self.optimizer.load_state_dict(copy.deepcopy(state))


def first(folder):
    gradients, cases = {}, []
    for sparse in (False, True):
        for dtype in (torch.float32, torch.float64):
            drawn = [[gradient(shape, dtype, sparse) for shape in SHAPES] for _ in range(WHOLE)]
            gradients[f"{dtype} {sparse}"] = drawn
    for kind, options, of_group in CASES:
        for dtype in (torch.float32, torch.float64):
            shapes = [list(shape) for shape in SHAPES if kind != "Muon" or len(shape) == 2]
            case = {"kind": kind, "options": options, "of_group": of_group, "shapes": shapes}
            case["gradients"] = f"{dtype} {kind == 'SparseAdam'}"
            case["parameters"] = flat([torch.randn(shape, dtype=dtype) for shape in shapes])
            side = Side(case, gradients[case["gradients"]])
            case["groups"] = copy.deepcopy(side.optimizer.state_dict()["param_groups"])
            steps = side.train(0, HALF)
            case["half"] = copy.deepcopy(side.optimizer.state_dict())
            case["steps"] = torch.stack(steps + side.train(HALF, WHOLE))
            case["end"] = side.optimizer.state_dict()
            resumed = Side(case, side.gradients)
            resumed.load(steps[-1], case["half"])
            case["resumed"] = resumed.train(HALF, WHOLE)[-1]
            cases.append(case)
    torch.save({"gradients": gradients, "cases": cases}, os.path.join(folder, "cases.pt"))


def second(folder):
    saved, halves = (torch.load(os.path.join(folder, name), weights_only=True) for name in ("cases.pt", "halves.pt"))
    for case, half in zip(saved["cases"], halves, strict=True):
        side = Side(case, saved["gradients"][case["gradients"]])
        side.load(half["parameters"], half["optimizer"])
        most = 0 if case["kind"] in vars(torch.optim) else 1e-6
        difference = side.train(HALF, WHOLE)[-1] - case["resumed"]
        assert difference.abs().max() <= most, (case["kind"], case["options"], case["of_group"])


torch.manual_seed(1)
torch.set_num_threads(1)
warnings.simplefilter("ignore")
{"first": first, "second": second}[sys.argv[1]](sys.argv[2])
