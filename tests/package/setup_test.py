# SPDX-License-Identifier: BSD-3-Clause
"""scripts/setup.sh chooses the torch that LOCKSTEP_TORCH and the machine ask for: servers on this machine stand in for
PyTorch's index and for PyPI, and small wheels for torch and CUDA's packages. Usage: setup_test.py <source> <work folder>"""
import base64, contextlib, hashlib, http.server, os, pathlib, platform, shutil, socket, subprocess, sys, threading, zipfile

source, work = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
minimum = next(line for line in (source / "cmake/LockstepLibTorch.cmake").read_text().splitlines()
               if line.startswith("set(LOCKSTEP_LIBTORCH_MINIMUM "))[:-1].split()[1]
version = next(line for line in (source / "scripts/requirements.txt").read_text().split() if line.startswith("torch=="))[7:]
tag = "cp{0}{1}-cp{0}{1}-linux_{2}".format(*sys.version_info[:2], platform.machine())

own = ("pip", "setuptools", "wheel")  # of every virtual environment


def make_wheel(folder, name, version, requires=(), files=(), tag="py3-none-any"):
    normal = name.replace("-", "_")
    info = f"{normal}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{normal}-{version}-{tag}.whl"
    contents = {file: b"" for file in files}
    extras = [line.split("extra == ")[1].strip("'") for line in requires if "extra == " in line]
    contents[f"{info}/METADATA"] = "\n".join(
        ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Provides-Extra: {e}" for e in extras),
         *(f"Requires-Dist: {r}" for r in requires), ""]).encode()
    contents[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    record = "".join("%s,sha256=%s,%d\n" % (f, base64.urlsafe_b64encode(hashlib.sha256(b).digest()).rstrip(b"=").decode(), len(b))
                     for f, b in contents.items())
    contents[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    with zipfile.ZipFile(path, "w") as archive:
        for file, data in contents.items():
            archive.writestr(file, data)
    return path


def make_indexes():
    """PyTorch's index with a CPU build, and a PyPI with the build with CUDA, as they are."""
    make_wheel(work / "pytorch/torch", "torch", f"{version}+cpu", ["filelock"], ["torch/lib/libtorch_cpu.so"], tag)
    pypi = work / "pypi"
    both = ["torch/lib/libtorch_cpu.so", "torch/lib/libtorch_cuda.so"]
    make_wheel(pypi / "torch", "torch", version, ["filelock", "cuda-toolkit[cublas,cudart,cupti]==13.0.3; platform_system == 'Linux'"], both, tag)
    make_wheel(pypi / "torch", "torch", "98.0.0", ["filelock"], both, tag)
    make_wheel(pypi / "torch", "torch", minimum, ["filelock"], both, tag)
    parts = {"cudart": "nvidia-cuda-runtime", "cupti": "nvidia-cuda-cupti", "crt": "nvidia-cuda-crt", "cccl": "nvidia-cuda-cccl",
             "cublas": "nvidia-cublas"}
    make_wheel(pypi / "cuda-toolkit", "cuda-toolkit", "13.0.3", [f"{p}==13.0.*; extra == '{e}'" for e, p in parts.items()])
    for part in parts.values():
        make_wheel(pypi / part, part, "13.0.96")
        make_wheel(pypi / part, part, "13.1.1")
    make_wheel(pypi / "filelock", "filelock", "1.0")


class Pages(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def serve(folder):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *a: Pages(*a, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@contextlib.contextmanager
def silent():
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def refusing():
    """A port at which nobody listens: bound, so that nobody else gets it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


class Machine:
    """A copy of what setup.sh reads, with a .venv of its own, and a nvidia-smi that lists a GPU or none."""

    def __init__(self, pypi):
        self.folder = work / "machine"
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(source / "scripts", self.folder / "scripts")
        (self.folder / "cmake").mkdir()
        shutil.copy(source / "cmake/LockstepLibTorch.cmake", self.folder / "cmake")
        programs = self.folder / "programs"
        programs.mkdir()
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "LOCKSTEP_", "PYTHON"))}
        self.environment |= {"PATH": f"{programs}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}", "PIP_INDEX_URL": pypi,
                             "PIP_CONFIG_FILE": os.devnull, "VIRTUAL_ENV": str(self.folder / "no-environment")}
        self.be_new()

    def be_new(self, gpu=False):
        """No package in .venv, no stamp of an earlier run."""
        (self.folder / "programs/nvidia-smi").write_text(f"#!/bin/sh\n{'echo GPU 0: a GPU' if gpu else 'exit 9'}\n")
        (self.folder / "programs/nvidia-smi").chmod(0o755)
        shutil.rmtree(self.folder / ".cache", ignore_errors=True)
        for package in self.folder.glob(".venv/lib/python3*/site-packages/*.dist-info"):
            if package.name.split("-")[0] not in own:
                shutil.rmtree(package)

    def setup(self, index, torch=None, succeeds=True, **more):
        environment = self.environment | {"LOCKSTEP_TORCH_INDEX": index} | ({"LOCKSTEP_TORCH": torch} if torch else {}) | more
        done = subprocess.run(["bash", "scripts/setup.sh"], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240)
        assert (done.returncode == 0) == succeeds, f"setup.sh ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def packages(self):
        site = next((self.folder / ".venv/lib").glob("python3*/site-packages"))
        found = dict(p.name.removesuffix(".dist-info").split("-") for p in site.glob("*.dist-info"))
        return {name: found[name] for name in found if name not in own}


def expect(what, got, wanted):
    assert got == wanted, f"{what}: expected {wanted}, got {got}"


def expect_line(text, words):
    lines = [line for line in text.splitlines() if words in line]
    assert len(lines) == 1, f"expected one line with {words!r}:\n{text}"


cpu_build = {"torch": f"{version}+cpu"}
cpu_part = {"torch": version, "cuda_toolkit": "13.0.3", "nvidia_cuda_runtime": "13.0.96", "nvidia_cuda_cupti": "13.0.96"}
with_cuda = cpu_part | {"filelock": "1.0", "nvidia_cublas": "13.0.96", "nvidia_cuda_crt": "13.0.96", "nvidia_cuda_cccl": "13.0.96"}


def check_refusals(machine):
    with refusing() as index:
        for choice, words in {"nonsense": "it must be [version][+cpu|+cuda]", "1.13.1": "or later", "/nowhere/torch-1.whl": "there is no such file",
                              "+gpu": "it must be [version][+cpu|+cuda]", str(source / "scripts"): "it must be"}.items():
            text = machine.setup(index, choice, succeeds=False)
            assert words in text and len(text.splitlines()) == 1, f"LOCKSTEP_TORCH={choice}: expected {words!r}:\n{text}"
        text = machine.setup(index, "+cpu", succeeds=False, LOCKSTEP_TORCH_PREFIX="/somewhere")
        assert "both LOCKSTEP_TORCH and LOCKSTEP_TORCH_PREFIX are set" in text, text
        assert not (machine.folder / ".venv").exists(), "a refused choice made .venv"


def check_index_that_answers(machine):
    with serve(work / "pytorch") as index:
        machine.setup(index)
        expect("an index that answers", machine.packages(), cpu_build)
        expect("nothing to do", machine.setup(index), "")
        machine.setup(index, "+cuda")
        expect("LOCKSTEP_TORCH=+cuda instead of a CPU build", machine.packages(), with_cuda)
        machine.setup(index, f"{version}+cpu")
        expect("LOCKSTEP_TORCH=<version>+cpu instead of a build with CUDA", machine.packages()["torch"], f"{version}+cpu")
        text = machine.setup(index, "98.0.0")
        expect_line(text, "has no CPU build of torch 98.0.0 for Python")
        expect("LOCKSTEP_TORCH=<version>", machine.packages()["torch"], "98.0.0")


def check_index_that_refuses(machine):
    machine.be_new()
    with refusing() as index:
        expect_line(machine.setup(index), f"PyTorch's index ({index}) could not be reached")
        expect("an index that refuses", machine.packages(), cpu_part)
        text = machine.setup(index, "+cpu", succeeds=False)
        expect_line(text, "LOCKSTEP_TORCH asks for a CPU build, which PyPI does not have")


def check_constraint(machine):
    """pip's settings exclude the release that is installed by default: the newest older one is taken, and stays."""
    machine.be_new()
    constraints = machine.folder / "constraints.txt"
    constraints.write_text(f"torch<{version}\n")
    with refusing() as index:
        machine.setup(index, PIP_CONSTRAINT=str(constraints))
        expect("an older release", machine.packages(), {"torch": minimum})
        machine.setup(index)
        expect("a release that is new enough", machine.packages(), {"torch": minimum})


def check_index_that_is_silent(machine):
    machine.be_new()
    with silent() as index:
        expect_line(machine.setup(index), f"PyTorch's index ({index}) did not answer within 5 s")
        expect("a silent index", machine.packages(), cpu_part)


def check_gpu(machine):
    machine.be_new(gpu=True)
    with refusing() as index:
        machine.setup(index)
        expect("a machine with a GPU", machine.packages(), with_cuda)
        assert not (machine.folder / ".cache/setup/without-cuda").exists(), "a machine with a GPU builds without nccl"


def check_wheels(machine):
    machine.be_new()
    with refusing() as index:
        first = make_wheel(machine.folder / "mine", "torch", "97.0.0+mine", ["filelock"], ["torch/first"], tag)
        machine.setup(index, "mine/" + first.name)
        expect("a wheel", machine.packages(), {"torch": "97.0.0+mine"})
        second = make_wheel(machine.folder / "other", "torch", "97.0.0+mine", ["filelock"], ["torch/second"], tag)
        machine.setup(index, str(second))
        assert next((machine.folder / ".venv").glob("lib/python3*/site-packages/torch/second")), "another wheel of that version"


def check_configure(machine):
    """A build folder is configured again when its LibTorch is another one, and then looks for everything again."""
    programs = machine.folder / "fake_cmake"
    programs.mkdir()
    (programs / "cmake").write_text('#!/bin/sh\nmkdir -p build/release && touch build/release/build.ninja build/release/CMakeCache.txt && echo "$@"\n')
    (programs / "cmake").chmod(0o755)

    def configure(**more):
        environment = machine.environment | {"PATH": f"{programs}:{machine.environment['PATH']}"} | more
        done = subprocess.run(["bash", "-c", "set -euo pipefail; source scripts/common.sh; warnings_as_errors=OFF; configure release product"],
                              cwd=machine.folder, env=environment, text=True, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = configure()
    assert "-DLOCKSTEP_WARNINGS_AS_ERRORS=OFF" in first and "-DLOCKSTEP_WITH_CUDA=OFF" in first and "Torch_DIR" not in first, first
    expect("the same again", configure(), "")
    assert "-U Torch_DIR" in (text := configure(LOCKSTEP_TORCH_PREFIX="/mine")) and "-DTorch_DIR=/mine" in text, text
    assert "-DLOCKSTEP_WITH_CUDA=OFF" not in text, text
    expect("no LibTorch named", configure(), "")
    text = configure(LOCKSTEP_TORCH="+cuda")
    assert f"-DTorch_DIR={machine.folder}/.venv/lib/python3" in text and text.rstrip().endswith("/site-packages/torch"), text
    make_wheel(machine.folder / "new", "torch", "96.0.0", [], ["torch/third"], tag)
    subprocess.run([machine.folder / ".venv/bin/pip", "install", "-q", "--no-deps", *(machine.folder / "new").glob("*.whl")],
                   env=machine.environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
    assert "-U Torch_DIR" in (text := configure()), text
    expect("the same again, with another torch", configure(), "")


def main():
    shutil.rmtree(work, ignore_errors=True)
    make_indexes()
    with serve(work / "pypi") as pypi:
        machine = Machine(pypi)
        for check in (check_refusals, check_index_that_answers, check_index_that_refuses, check_constraint, check_index_that_is_silent,
                      check_gpu, check_wheels, check_configure):
            check(machine)
            print(f"{check.__name__}: passed", flush=True)


main()
